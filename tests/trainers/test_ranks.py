"""A trainer of two processes equals a trainer of one; a rank that fails, hangs or dies is one clear error.

All two-process runs share one pair of processes (rank_scenarios.py), since starting one takes seconds.
"""

from __future__ import annotations

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

from tests.trainers import rank_scenarios
from trainers.ranks import ALONE
from trainers.role import make_trainer

pytestmark = pytest.mark.slow

Rows = Callable[..., pa.Table]

SGD = {"learning_rate": 0.5, "optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
OBJECTIVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "trl-token-mean": ({"loss_type": "dapo", "beta": 0.1}, {}),
    "trl-row-mean": ({"loss_type": "grpo"}, {}),
    "own-token-mean": ({}, {"loss": {"use": "ppo_clip"}, "kl": {"coef": 0.1}, "batch_ops": [{"whiten": {}}]}),
    "own-row-mean": ({}, {"loss": {"use": "tests.trainers.row_mean_loss:LOSS"}}),
}
"""By name: the recipe's `trl` and its objective."""
EQUAL = [(name, accumulate) for name in OBJECTIVES for accumulate in (1, 2)]


def scenario(folder: Path, model_path: Path, name: str, accumulate: int, /, **changed: Any) -> dict[str, Any]:
    """Two steps: a full lease of 16 rows, and a ragged one."""
    trl, objective = OBJECTIVES[name]
    arguments = {
        "model_path": str(model_path),
        "output_dir": str(folder / f"checkpoints-{name}-{accumulate}"),
        "steps": 4,
        "rows_per_step": 16,
        "options": {**SGD, **trl, "gradient_accumulation_steps": accumulate},
        "seed": 0,
        "resume_from": None,
        "off_policy": {"old_logprobs": "recompute", "importance": "token_truncated"}
        if accumulate == 2
        else {},
        "objective": objective,
        "limits": {"deadline_s": 120.0, "threads": 1},
    }
    tables = ["full", "full" if "beta" in trl else "ragged"]
    return {"name": f"{name}-{accumulate}", "arguments": arguments, "tables": tables, **changed}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, model_path: Path, rows_table: Rows) -> tuple[Path, Any]:
    """The folder of what two processes wrote, and what they told."""
    folder = tmp_path_factory.mktemp("ranks")
    full, ragged = rows_table(0, 16, per_token=True), rows_table(1, 11)
    rank_1s = rows_table(0, 16).to_pylist()
    broken = [{**row, "advantage": [float("nan")] if i == 3 else [1.0]} for i, row in enumerate(rank_1s)]
    nan = pa.Table.from_pylist(broken, schema=rows_table(0, 16).schema)
    for name, table in (("full", full), ("ragged", ragged), ("nan", nan)):
        with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as file:
            file.write_table(table)
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
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder, json.loads((folder / "told.json").read_text())


def alone(folder: Path, wanted: dict[str, Any], out: str) -> tuple[dict[str, torch.Tensor], Any]:
    """The same trained by one process."""
    arguments = {**wanted["arguments"], "output_dir": str(folder / f"{out}-checkpoints")}
    trainer = make_trainer(arguments, ALONE)
    reports = rank_scenarios.run(trainer, folder, {**wanted, "name": out})
    trainer.close()
    return load_file(folder / out / "model.safetensors"), reports


def relative(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], before: dict[str, torch.Tensor]
) -> float:
    """Norm of the difference of two parameter updates over the norm of the second."""
    off = sum(float((got[n] - want[n]).double().square().sum()) for n in want)
    update = sum(float((want[n] - before[n]).double().square().sum()) for n in want)
    return float((off / update) ** 0.5)


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
        for metric in ("loss", "grad_norm", "ratio/mean", "ratio/p99", "kl_rollout", "tokens", "rows"):
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
