"""One pair of processes for all tests of trainers with two ranks."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.trainers.ranks import rank_scenarios
from tests.trainers.ranks.rank_scenarios import EQUAL, SPLIT, resumed, scenario, split, write_table

Rows = Callable[..., pa.Table]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, model_path: Path, rows_table: Rows) -> tuple[Path, Any]:
    """The folder of what two processes wrote, and what they told; made once for all workers of the suite."""
    base, suite = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    folder = (base.parent if suite else base) / f"ranks-{suite}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "told.json").exists():
            write_runs(folder, model_path, rows_table)
    return folder, json.loads((folder / "told.json").read_text())


def write_runs(folder: Path, model_path: Path, rows_table: Rows) -> None:
    folder.mkdir(exist_ok=True)
    full, ragged = rows_table(0, 16, per_token=True), rows_table(1, 11)
    rank_1s = rows_table(0, 16).to_pylist()
    broken = [{**row, "advantage": [float("nan")] if i == 3 else [1.0]} for i, row in enumerate(rank_1s)]
    nan = pa.Table.from_pylist(broken, schema=rows_table(0, 16).schema)
    for name, table in (("full", full), ("ragged", ragged), ("nan", nan)):
        write_table(folder, name, table)
    first, step = EQUAL[0]
    kept = scenario(folder, model_path, first, step, name="kept", checkpoint=True, tables=["full"])
    again = scenario(folder, model_path, first, step, name="again", tables=["full"], first_step=1)
    again["arguments"] = {
        **again["arguments"],
        "resume_from": f"{again['arguments']['output_dir']}/checkpoint-1",
    }
    in_parts = [split(folder, model_path, name) for name in SPLIT]
    scenarios = [
        *(scenario(folder, model_path, name, accumulate) for name, accumulate in EQUAL),
        *in_parts,
        *map(resumed, in_parts),
        kept,
        again,
        scenario(folder, model_path, "trl-row-mean", 1, name="nan", tables=["nan"]),
    ]
    (folder / "scenarios.json").write_text(json.dumps(scenarios))
    command = [sys.executable, "-m", rank_scenarios.__name__, str(folder)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-6000:]
