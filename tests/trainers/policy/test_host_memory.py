"""A trainer that slept between two steps takes them as one that did not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from rft_data.core.errors import TrainingError
from tests.trainers.ranks.rank_scenarios import batches, run, split, weights, write_table
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.host_memory import HostMemory
from trainers.ranks.ranks import ALONE
from trainers.role import make_trainer

pytestmark = pytest.mark.heavy
Case = tuple[Path, dict[str, Any], GrpoTrainer]


@pytest.fixture
def case(tmp_path: Path, model_path: Path, rows_table: Callable[..., pa.Table]) -> Iterator[Case]:
    """A trainer with a reference model and a critic of its own, and Adam."""
    write_table(tmp_path, "full", rows_table(0, 16, per_token=True))
    wanted = split(tmp_path, model_path, "split-critic")
    arguments = copy.deepcopy(wanted["arguments"])
    arguments["limits"]["shard"] = None
    arguments["objective"]["kl"] = {"coef": 0.1}
    wanted = {**wanted, "arguments": arguments, "checkpoint": False}
    trainer = make_trainer(arguments, ALONE)
    yield tmp_path, wanted, trainer
    trainer.close()


def test_steps_after_a_sleep_are_the_same_to_the_last_bit(case: Case) -> None:
    folder, wanted, trainer = case
    slept = run(trainer, folder, {**wanted, "name": "slept", "sleeps": True})
    other = make_trainer(wanted["arguments"], ALONE)
    awake = run(other, folder, {**wanted, "name": "awake", "sleeps": False})
    other.close()
    got, want = weights(folder / "slept"), weights(folder / "awake")
    assert all(torch.equal(got[name], want[name]) for name in want)
    for one, two in zip(slept, awake, strict=True):
        assert (one["metrics"]["loss"], one["metrics"]["critic/loss"]) == (
            two["metrics"]["loss"],
            two["metrics"]["critic/loss"],
        )


def test_nothing_of_a_trainer_that_sleeps_stays_on_its_device(case: Case) -> None:
    folder, wanted, trainer = case
    trainer.train_on(batches(folder, wanted)[0])
    inner = trainer._trainer
    assert inner.ref_model is not None
    assert inner.critic is not None
    HostMemory(inner, torch.device("meta")).sleep()  # the host of a trainer on a CPU is where it is already
    models = [inner.model, inner.ref_model, *inner.critic.model.beside_policy()]
    parameters = [parameter for model in models for parameter in model.parameters()]
    assert {str(parameter.device) for parameter in parameters} == {"meta"}
    assert [parameter.grad for parameter in parameters] == [None] * len(parameters)
    moments = [
        value for values in inner.optimizer.state.values() for value in values.values() if value.ndim > 0
    ]
    trained = sum(len(group["params"]) for group in inner.optimizer.param_groups)
    assert len(moments) == 2 * trained > 0
    assert {str(value.device) for value in moments} == {"meta"}


def test_trainer_that_sleeps_takes_no_step(case: Case) -> None:
    folder, wanted, trainer = case
    trainer.sleep()
    trainer.sleep()
    with pytest.raises(TrainingError, match="a step was asked for while the trainer sleeps; call wake first"):
        trainer.train_on(batches(folder, wanted)[0])
    trainer.wake()
    assert trainer.train_on(batches(folder, wanted)[0]).metrics["loss"] != 0
