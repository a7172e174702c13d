import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.command import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_smoke_run_prints_a_bar_for_every_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.command", "--quick"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    bars = json.loads(done.stdout.splitlines()[-1])["bars"]
    assert [bar["name"] for bar in bars] == [f"{name}_vs_pass" for name in COMMANDS]
    assert all(bar["value"] > 1 for bar in bars)
