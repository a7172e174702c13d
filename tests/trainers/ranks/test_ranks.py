"""A trainer of two processes equals a trainer of one; a rank that fails, hangs or dies is one clear error.

All two-process runs share one pair of processes (rank_scenarios.py), since starting one takes seconds.
"""

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
import torch
from safetensors.torch import load_file

from tests.trainers.ranks import rank_scenarios
from tests.trainers.ranks.rank_scenarios import EQUAL, alone, relative, scenario, write_table

pytestmark = pytest.mark.slow

Rows = Callable[..., pa.Table]


@pytest.fixture(scope="module")
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
    scenarios = [
        *(scenario(folder, model_path, name, accumulate) for name, accumulate in EQUAL),
        kept,
        again,
        scenario(folder, model_path, "trl-row-mean", 1, name="nan", tables=["nan"]),
    ]
    (folder / "scenarios.json").write_text(json.dumps(scenarios))
    command = [sys.executable, rank_scenarios.__file__, str(folder)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.parametrize(("name", "accumulate"), EQUAL)
def test_two_processes_update_the_parameters_as_one_does(
    runs: tuple[Path, Any], model_path: Path, name: str, accumulate: int
) -> None:
    folder, told = runs
    wanted = scenario(folder, model_path, name, accumulate)
    want, reports = alone(folder, wanted, f"alone-{name}-{accumulate}")
    got = load_file(folder / wanted["name"] / "model.safetensors")
    assert relative(got, want, load_file(model_path / "model.safetensors")) <= 1e-5
    for two, one in zip(told[wanted["name"]], reports, strict=True):
        for metric in (
            "loss",
            "grad_norm",
            "sampling/importance_sampling_ratio/mean",
            "sampling/importance_sampling_ratio/p99",
            "kl_rollout",
            "tokens",
            "rows",
        ):
            assert two["metrics"][metric] == pytest.approx(one["metrics"][metric], rel=1e-4, abs=1e-7), metric
        assert two["ess"] == pytest.approx({str(v): e for v, e in one["ess"].items()}, rel=1e-4)


def test_two_processes_resume_where_their_checkpoint_left_them(
    runs: tuple[Path, Any], model_path: Path
) -> None:
    folder, _ = runs
    checkpoint = folder / "checkpoints-trl-token-mean-1" / "checkpoint-1"
    assert {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"} <= {
        path.name for path in checkpoint.iterdir()
    }
    want = load_file(folder / "trl-token-mean-1" / "model.safetensors")
    got = load_file(folder / "again" / "model.safetensors")
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_loss_that_is_not_finite_on_one_rank_fails_on_all(runs: tuple[Path, Any]) -> None:
    _, told = runs
    assert told["nan"].startswith("TrainingError: optimizer step 1: the loss is nan")


def test_rank_that_hangs_is_named_after_the_deadline(runs: tuple[Path, Any]) -> None:
    _, told = runs
    assert told["stalled"].startswith("StalledError: rank 1 of the trainer's 2 has not answered within")


def test_rank_that_dies_amid_a_step_is_named_at_once(runs: tuple[Path, Any]) -> None:
    _, told = runs
    assert told["killed"].startswith("RoleDiedError: rank 1 of the trainer's 2 is gone")


def test_closed_ranks_leave_a_process_that_is_alone_again(runs: tuple[Path, Any]) -> None:
    _, told = runs
    assert told["left"] == [[], None]
