import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.heavy
def test_smoke_run_prints_a_bar_for_every_view() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.page", "--quick"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    bars = {bar["name"]: bar["value"] for bar in said["bars"]}
    assert set(bars) == {
        *(f"p95_ms_{view}" for view in ("table", "group", "metrics")),
        "first_paint_kb",
        "server_resident_mb",
        "run_throughput_beside_five_readers",
    }
    assert all(value > 0 for value in bars.values())
    assert bars["first_paint_kb"] < 250
    assert said["figures"]["p95_ms"]["table"] > said["figures"]["bare_scan_p95_ms"]["table"]
