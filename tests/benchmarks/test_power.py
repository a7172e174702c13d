"""Power cuts, a few: nothing acknowledged is lost, and an fsync that is missing is seen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.crash.trace import has_strace


@pytest.mark.heavy
@pytest.mark.timeout(660)
@pytest.mark.skipif(not has_strace(), reason="needs strace")
def test_power_cuts_cost_nothing_and_a_missing_fsync_is_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.crash", "--cuts", "16", "--folder", str(tmp_path)]
    forgotten = ["--forget", "/data$", "--forget", "^checkpoints$"]
    done = subprocess.run([*command, *forgotten], capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert report["acked"] > 100
    assert report["cuts"] == sum(report["ways"].values()) == 16
    assert len(report["ways"]) == 4
    wrong = ("lost", "duplicated", "torn_groups", "trained_twice", "faults")
    assert {name: report[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert report["unseen"] == []
