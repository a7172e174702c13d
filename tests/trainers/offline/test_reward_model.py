"""The reward model: Bradley-Terry in float64, stock TRL's update, and what it can tell afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, set_seed
from trl import RewardConfig, RewardTrainer

from rft_data.core.errors import RecipeError
from tests.trainers.offline import preference_reference as reference
from tests.trainers.stock import STOCK, require_same_update
from trainers.models.weights import load_tokenizer
from trainers.offline.answers import Answer, rendered_answer
from trainers.offline.preference_accuracy import scorer_accuracy
from trainers.offline.reward_model import load_scorer, reward_config, reward_trainer, train_reward_model


def scorer(path: Path) -> Any:
    set_seed(5)
    return load_scorer(path)


def trainer_of(path: Path, made: Any, folder: Path, **options: Any) -> Any:
    given = {"per_device_train_batch_size": len(made), **options}
    return reward_trainer(
        scorer(path), reward_config(folder, options=given, seed=0), made, load_tokenizer(path)
    )


@pytest.mark.slow
def test_loss_is_bradley_terrys_in_float64(model_path: Path, tmp_path: Path) -> None:
    made = reference.pairs(1, 4)
    trainer = trainer_of(model_path, made, tmp_path)
    loss = trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
    exact = scorer(model_path).double().eval()

    def score(answer: Answer) -> torch.Tensor:
        return exact(input_ids=torch.tensor([list(answer.ids)])).logits[0, 0]

    wanted = -sum(torch.nn.functional.logsigmoid(score(b) - score(w)) for b, w in made) / len(made)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    loss.backward()
    wanted.backward()
    found, exactly = reference.gradients(trainer.model), reference.gradients(exact)
    assert float((found - exactly).norm() / exactly.norm()) < 1e-5


@pytest.mark.slow
def test_first_update_equals_stock_trl_on_the_same_conversations(model_path: Path, tmp_path: Path) -> None:
    texts = [("2+3=", "5", "The answer is 7."), ("Name a tree.", "Oak, or elm.", "blue")]
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "chosen": [{"role": "assistant", "content": better}],
            "rejected": [{"role": "assistant", "content": worse}],
        }
        for prompt, better, worse in texts
    ]
    tokenizer = load_tokenizer(model_path)
    made = [
        tuple(rendered_answer(tokenizer, [*row["prompt"], *row[half]], 1) for half in ("chosen", "rejected"))
        for row in rows
    ]
    options = {"learning_rate": 1e-2, "max_steps": 1, "optim": "sgd"}
    ours = trainer_of(model_path, made, tmp_path, **options)
    stock = RewardTrainer(
        model=scorer(model_path),
        args=RewardConfig(
            str(tmp_path / "stock"),
            per_device_train_batch_size=2,
            **STOCK,
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(model_path),
    )
    start = scorer(model_path).state_dict()
    require_same_update(ours, stock, start, least=1e-6)


@pytest.mark.slow
def test_trained_scorer_loads_as_a_classifier_and_tells_better_from_worse(
    model_path: Path, tmp_path: Path
) -> None:
    made = [
        (
            Answer([7, 8, 20 + i % 3, 30], [0, 0, 1, 1], 2),
            Answer([7, 8, 20 + i % 5, 31], [0, 0, 1, 1], 2),
        )
        for i in range(12)
    ]
    options = {"max_steps": 12, "learning_rate": 2e-3, "per_device_train_batch_size": 12}
    fitted = train_reward_model(model_path, made, tmp_path, options=options, seed=0)
    assert fitted.metrics["loss_last"] < fitted.metrics["loss_first"]
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).config.num_labels == 1
    assert scorer_accuracy(tmp_path, made)["accuracy"] == 1.0


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'loss_type' is not an option of TRL's RewardConfig"):
        reward_config(tmp_path, options={"loss_type": "x"}, seed=0)
