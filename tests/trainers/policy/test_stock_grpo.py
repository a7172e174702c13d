"""The first update of our GRPO is that of stock TRL on the same rows, which it gets by its `rollout_func`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.trainers.stock import STOCK, require_same_update
from trainers.models.weights import load_model, load_tokenizer
from trainers.policy.experience_grpo import ExperienceGRPOTrainer
from trainers.policy.full_batch import full_batch
from trainers.policy.grpo_config import grpo_config
from trainers.policy.off_policy import OffPolicy

Rows = Callable[..., pa.Table]
GROUP = 4
OPTIONS: dict[str, Any] = {"learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0}


def standardised(rewards: list[float]) -> list[list[float]]:
    """GRPO's advantages, group by group."""
    groups = np.array(rewards).reshape(-1, GROUP)
    scaled = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)
    return [[float(value)] for value in scaled.flatten()]


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo", "cispo", "sapo"])
def test_first_update_equals_stock_trls(
    loss_type: str, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(7, 2 * GROUP)
    rows = table.to_pylist()
    table = table.set_column(
        table.schema.get_field_index("advantage"),
        table.schema.field("advantage"),
        pa.array(standardised([row["reward"] for row in rows]), pa.list_(pa.float32())),
    )
    options = {**OPTIONS, "loss_type": loss_type}
    stock = GRPOTrainer(
        model=load_model(model_path),
        reward_funcs=lambda completion_ids, **_: [reward_of(rows, ids) for ids in completion_ids],
        args=GRPOConfig(
            str(tmp_path / "stock"),
            max_steps=1,
            per_device_train_batch_size=2 * GROUP,
            num_generations=GROUP,
            max_completion_length=32,
            shuffle_dataset=False,
            **STOCK,
            **options,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["0", "1"]}),
        processing_class=load_tokenizer(model_path),
        rollout_func=lambda prompts, _: stored(rows, prompts),
    )
    config = grpo_config(tmp_path / "ours", steps=1, rows_per_step=2 * GROUP, options=options, seed=0)
    tokenizer = load_tokenizer(model_path)
    batch = full_batch(table, config, tokenizer.pad_token_id)
    # Stock TRL takes the policy of the step's start for the one that sampled.
    ours = ExperienceGRPOTrainer(
        load_model(model_path), config, tokenizer, lambda: batch, OffPolicy("recompute"), []
    )
    start = load_model(model_path).state_dict()
    require_same_update(ours, stock, start, least=1e-4, tolerance=1e-5)  # sums are made in another order


def stored(rows: list[dict[str, Any]], prompts: list[str]) -> dict[str, list[list[Any]]]:
    """TRL asks with each prompt, here its group's number, GROUP times in a row."""
    asked = [rows[int(prompt) * GROUP + at % GROUP] for at, prompt in enumerate(prompts)]
    starts = [row["prompt_length"] for row in asked]
    return {
        "prompt_ids": [row["token_ids"][:start] for row, start in zip(asked, starts, strict=True)],
        "completion_ids": [row["token_ids"][start:] for row, start in zip(asked, starts, strict=True)],
        "logprobs": [row["logprobs"][start:] for row, start in zip(asked, starts, strict=True)],
        "env_mask": [row["action_mask"][start:] for row, start in zip(asked, starts, strict=True)],
    }


def reward_of(rows: list[dict[str, Any]], ids: list[int]) -> float:
    """Of the row with this completion."""
    return next(row["reward"] for row in rows if row["token_ids"][row["prompt_length"] :] == ids)
