"""What trainers of two processes train in the tests, and rank 0 of one: `python -m` this module FOLDER.

FOLDER/scenarios.json lists what is trained; weights and reports are written beside it. Not a test itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import torch
from safetensors.torch import load_file

from rft_data.core.errors import RftError
from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch
from rft_data.weights.adapter import ADAPTER_FILE
from trainers.policy.grpo import GrpoTrainer
from trainers.ranks.launch import OtherRanks, RankProcesses
from trainers.ranks.ranks import ALONE
from trainers.role import make_trainer

SGD = {"learning_rate": 0.5, "optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
OBJECTIVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "trl-token-mean": ({"loss_type": "dapo", "beta": 0.1}, {}),
    "trl-row-mean": ({"loss_type": "grpo"}, {}),
    "own-token-mean": ({}, {"loss": {"use": "ppo_clip"}, "kl": {"coef": 0.1}, "batch_ops": [{"whiten": {}}]}),
    "own-row-mean": ({}, {"loss": {"use": "tests.trainers.policy.row_mean_loss:LOSS"}}),
}
"""By name: the recipe's `trl` and its objective."""
ADAM = {"optim": "adamw_torch", "adam_epsilon": 0.1, "learning_rate": 0.1, "max_grad_norm": 0.2}
"""Clips, and is smooth where gradients are near 0, so that small differences stay small."""
_VALUES: list[dict[str, Any]] = [{"gae": {}}, {"whiten": {}}]
SPLIT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "split-whole": ({"beta": 0.1, "gradient_accumulation_steps": 2}, {}),
    "split-critic": (
        {},
        {
            "loss": {"use": "ppo_clip"},
            "critic": {"use": "separate", "learning_rate": 0.1},
            "batch_ops": _VALUES,
        },
    ),
    "split-adapter": (
        {},
        {
            "loss": {"use": "ppo_clip"},
            "critic": {"use": "shared", "learning_rate": 0.1},
            "batch_ops": _VALUES,
            "lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
        },
    ),
}
"""The same, of trainers whose model FSDP2 splits over the ranks."""
EQUAL = [
    ("trl-token-mean", 1),
    ("trl-token-mean", 2),
    ("trl-row-mean", 2),
    ("own-token-mean", 1),
    ("own-token-mean", 2),
    ("own-row-mean", 2),
]
"""Objective, and micro-batches in a step. A mean over tokens weighs them, one over rows does not."""


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


def split(folder: Path, model_path: Path, name: str) -> dict[str, Any]:
    """Two steps of a model that is split, with a checkpoint after each; it sleeps before each."""
    wanted = scenario(folder, model_path, "own-token-mean", 1, name=name, checkpoint=True, sleeps=True)
    trl, objective = SPLIT[name]
    arguments = {
        **wanted["arguments"],
        "output_dir": str(folder / f"checkpoints-{name}"),
        "options": {**ADAM, **trl},
        "objective": objective,
        "limits": {**wanted["arguments"]["limits"], "shard": "fsdp2"},
    }
    return {**wanted, "arguments": arguments, "tables": ["full", "full"]}


def resumed(wanted: dict[str, Any]) -> dict[str, Any]:
    """The second step of a scenario, from the checkpoint of its first."""
    arguments = wanted["arguments"]
    resume_from = f"{arguments['output_dir']}/checkpoint-1"
    return {
        **wanted,
        "name": f"{wanted['name']}-again",
        "arguments": {**arguments, "resume_from": resume_from},
        "tables": wanted["tables"][1:],
        "first_step": 1,
        "checkpoint": False,
        "sleeps": False,
    }


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Where a scenario's `tables` are looked for."""
    with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as file:
        file.write_table(table)


def batches(folder: Path, scenario: dict[str, Any]) -> list[LeasedBatch]:
    """The leases of a scenario, in order of steps."""
    found = []
    for step, name in enumerate(scenario["tables"], scenario.get("first_step", 0)):
        table = pa.ipc.open_file(folder / f"{name}.arrow").read_all()
        seqs = tuple(range(table.num_rows))
        found.append(LeasedBatch(Lease("trainer", step, 0, step, seqs, ("group-a",), "digest"), table))
    return found


def run(trainer: GrpoTrainer, folder: Path, scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """Train it and write its weights."""
    reports = []
    for batch in batches(folder, scenario):
        if scenario.get("sleeps", False):
            trainer.sleep()
            trainer.wake()
        report = trainer.train_on(batch, checkpoint=scenario.get("checkpoint", False))
        reports.append({"metrics": dict(report.metrics), "ess": {str(v): e for v, e in report.ess.items()}})
    out = folder / scenario["name"]
    out.mkdir()
    trainer.save_weights(out)
    return reports


def alone(folder: Path, wanted: dict[str, Any], out: str) -> tuple[dict[str, torch.Tensor], Any]:
    """The same trained by one process."""
    limits = {**wanted["arguments"]["limits"], "shard": None}
    arguments = {
        **wanted["arguments"],
        "output_dir": str(folder / f"{out}-checkpoints"),
        "limits": limits,
    }
    trainer = make_trainer(arguments, ALONE)
    reports = run(trainer, folder, {**wanted, "name": out, "sleeps": False})
    trainer.close()
    return weights(folder / out), reports


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a published version: of the model, or of the adapter."""
    adapter = folder / ADAPTER_FILE
    return load_file(adapter if adapter.exists() else folder / "model.safetensors")


def relative(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], before: dict[str, torch.Tensor]
) -> float:
    """Norm of the difference of two parameter updates over the norm of the second."""
    off = sum(float((got[n] - want[n]).double().square().sum()) for n in want)
    update = sum(float((want[n] - before[n]).double().square().sum()) for n in want)
    return float((off / update) ** 0.5)


def made(others: OtherRanks, scenario: dict[str, Any]) -> GrpoTrainer:
    """The scenario's trainer, on every rank."""
    with others.ranks.together({"do": "make", "arguments": scenario["arguments"]}):
        return make_trainer(scenario["arguments"], others.ranks)


def attempt(trainer: GrpoTrainer, batch: LeasedBatch) -> str:
    """What a step raised."""
    try:
        trainer.train_on(batch)
    except RftError as err:
        return f"{type(err).__name__}: {err}"
    return "nothing"


def stalled_step(others: RankProcesses, trainer: GrpoTrainer, batch: LeasedBatch) -> str:
    """What a step raises while the other rank is stopped."""
    os.kill(others._others[0].pid, signal.SIGSTOP)
    others.ranks.deadline_s = 2.0
    return attempt(trainer, batch)


def main(folder: Path) -> None:
    """Every scenario, the last of which fails; then a rank that hangs."""
    told: dict[str, Any] = {}
    before = psutil.Process().children()
    others = RankProcesses(2, 120.0)
    for scenario in json.loads((folder / "scenarios.json").read_text()):
        trainer = made(others, scenario)
        if scenario["name"] == "nan":
            told["nan"] = attempt(trainer, batches(folder, scenario)[0])
        else:
            told[scenario["name"]] = run(trainer, folder, scenario)
        trainer.close()
    others.close()
    others = RankProcesses(2, 120.0)
    trainer = made(others, scenario)
    told["stalled"] = stalled_step(others, trainer, batches(folder, scenario)[0])
    trainer.close()
    others.close(now=True)
    left = [child.pid for child in psutil.Process().children() if child not in before]
    told["left"] = [left, os.environ.get("RANK")]
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
