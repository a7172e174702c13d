"""DPO, KTO and reward models go on inside a stage: the weights are those of one that nothing broke off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rft_data.core.failpoints import armed
from tests.trainers.offline import preference_reference as reference
from tests.trainers.offline.test_sft import assert_same_weights
from trainers.offline import stage_checkpoints
from trainers.offline.dpo import train_dpo
from trainers.offline.kto import train_kto
from trainers.offline.offline_fit import Fitted
from trainers.offline.reward_model import train_reward_model

OPTIONS = {"num_train_epochs": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-3}
"""Six steps, of batches that are drawn anew in each epoch."""


def dpo(model: Path, folder: Path) -> Fitted:
    return train_dpo(model, reference.pairs(1, 4), folder, options=OPTIONS, seed=3)


def kto(model: Path, folder: Path) -> Fitted:
    labels = [True, False, False, True]
    return train_kto(model, reference.answers(7, 4), labels, folder, options=OPTIONS, seed=3)


def reward_model(model: Path, folder: Path) -> Fitted:
    return train_reward_model(model, reference.pairs(1, 4), folder, options=OPTIONS, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("train", [dpo, kto, reward_model], ids=lambda train: train.__name__)
def test_a_stage_that_dies_goes_on_from_its_checkpoint_with_the_same_weights(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Callable[[Path, Path], Any]
) -> None:
    monkeypatch.setattr(stage_checkpoints, "EVERY_S", 0.0)
    monkeypatch.setattr(stage_checkpoints, "_COST", 0)
    straight = train(model_path, tmp_path / "straight")
    with armed("stage.step", 4), pytest.raises(OSError, match=r"stage\.step"):
        train(model_path, tmp_path / "broken")
    assert [folder.name for folder in (tmp_path / "broken.checkpoints").glob("checkpoint-*")] == [
        "checkpoint-3"
    ]
    with armed("stage.step", 99) as counted:
        resumed = train(model_path, tmp_path / "broken")
    assert counted.passes == 3, "the fourth to the sixth step were left to take"
    assert resumed.history == straight.history
    assert_same_weights(tmp_path / "straight", tmp_path / "broken")
