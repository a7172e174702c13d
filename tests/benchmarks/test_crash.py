"""The crash harness, short: sound on the buffer as it is, and not sound on broken ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.crash.driver import FAILPOINTS
from benchmarks.crash.mutations import MUTATIONS


def crash(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and stderr of one run."""
    command = [sys.executable, "-m", "benchmarks.crash", "--folder", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.heavy
def test_kills_in_every_transition_cost_nothing(tmp_path: Path) -> None:
    status, report, errors = crash(tmp_path, "--kills", "24", "--seed", "4")
    assert status == 0, errors
    assert 24 <= report["kills"] <= 25
    assert report["acked"] > 200
    assert report["trained"] >= 6
    wrong = ("lost", "duplicated", "torn_groups", "trained_twice", "faults")
    assert {name: report[name] for name in wrong} == dict.fromkeys(wrong, 0)
    families = {name.split(".")[0] for name in FAILPOINTS}
    assert {name.split(".")[0] for name in report["at_failpoint"]} == families
    assert {"run", "hub and client"} < set(report["victims"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mutation", "seen"),
    [
        ("acknowledge_early", "lost"),
        ("forget_ids", "duplicated"),
        ("split_commits", "torn_groups"),
        ("forget_leases", "trained_twice"),
    ],
)
def test_a_broken_system_is_seen(tmp_path: Path, mutation: str, seen: str) -> None:
    for seed in range(5):  # the first defect seen ends a run, and a broken system has more than one
        options = ("--kills", "30", "--seed", str(seed), "--mutation", mutation)
        status, report, errors = crash(tmp_path, *options)
        assert status != 0
        assert "/life-" in errors
        if report[seen]:
            return
    pytest.fail(f"{mutation} was seen, but never as {seen}")


def test_every_mutation_is_tried() -> None:
    assert set(MUTATIONS) == {"acknowledge_early", "forget_ids", "split_commits", "forget_leases"}
