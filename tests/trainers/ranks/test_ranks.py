"""A trainer of two processes equals a trainer of one; a rank that fails or hangs is one clear error.

One that dies: tests/rft_data/run/test_ray_run.py.

All two-process runs share one pair of processes (conftest.py), since starting one takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rft_data.core.errors import RftError, StalledError, TrainingError
from tests.trainers.ranks.rank_scenarios import EQUAL, alone, relative, scenario
from trainers.ranks.ranks import Ranks

pytestmark = pytest.mark.heavy


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


def test_closed_ranks_leave_a_process_that_is_alone_again(runs: tuple[Path, Any]) -> None:
    _, told = runs
    assert told["left"] == [[], None]


SILENT = StalledError("rank 1 of the trainer's 2 has not answered within 3600 s")
FAILED = TrainingError("rank 1 of the trainer's 2 failed: boom")


@pytest.mark.parametrize(
    ("own", "of_others", "told"),
    [
        (TypeError("a defect here"), SILENT, "own"),
        (TypeError("a defect here"), FAILED, "other"),
        (RuntimeError("connection closed by peer"), SILENT, "other"),
        (StalledError("optimizer step 1 took longer"), SILENT, "other"),
        (TrainingError("the loss is nan"), FAILED, "own"),
        (OSError("no space left"), SILENT, "own"),
    ],
)
def test_the_error_that_began_it_is_told(
    monkeypatch: pytest.MonkeyPatch, own: Exception, of_others: RftError, told: str
) -> None:
    def collect(ranks: Ranks, end: float) -> None:
        raise of_others

    monkeypatch.setattr(Ranks, "_tell", lambda *_: None)
    monkeypatch.setattr(Ranks, "_collect", collect)
    with (
        pytest.raises(type(own) if told == "own" else type(of_others)) as caught,
        Ranks(0, 2).together({"do": "end"}),
    ):
        raise own
    assert caught.value is (own if told == "own" else of_others)
