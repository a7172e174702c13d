"""The recipe's `trl: {...}` against the real config classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig, SFTConfig

from rft_data.core.errors import RecipeError
from trainers.models.owned import OWNED
from trainers.offline.sft import SFT_OWNED
from trainers.policy.grpo_config import GRPO_OWNED, grpo_config


def config(tmp_path: Path, options: dict[str, Any], rows: int = 8) -> GRPOConfig:
    return grpo_config(tmp_path, steps=5, rows_per_step=rows, options=options, seed=7)


def test_grpo_config_takes_options_and_keeps_what_the_run_decides(tmp_path: Path) -> None:
    got = config(tmp_path, {"learning_rate": 2e-4, "loss_type": "grpo", "gradient_accumulation_steps": 4})
    assert (got.learning_rate, got.loss_type, got.max_steps, got.seed) == (2e-4, "grpo", 5, 7)
    assert (got.per_device_train_batch_size, got.generation_batch_size, got.steps_per_generation) == (2, 8, 4)
    assert (got.save_strategy, got.logging_steps, got.report_to, got.beta) == ("no", 1, [], 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lerning_rate": 1.0},
            "'lerning_rate' is not an option of TRL's GRPOConfig; did you mean 'learning_rate'",
        ),
        ({"max_steps": 3}, "'max_steps' cannot be set here: the stage's steps decide"),
        (
            {"num_generations": 8},
            "'num_generations' cannot be set here: the batch is groups_per_step x group_size",
        ),
        ({"use_vllm": True}, "'use_vllm' cannot be set here: sampling is the explorers' work"),
        ({"scale_rewards": "none"}, "rewards and advantages come from operators"),
        ({"num_iterations": 2}, "num_iterations is 2, must be 1"),
        ({"reward_weights": [1.0]}, "'reward_weights' cannot be set here: .* 'explorer.reward'"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "belong to the stage's 'off_policy'"),
        ({"shuffle_dataset": True}, "the selector decides the order of tasks"),
        ({"model_init_kwargs": {"trust_remote_code": True}}, "code from model repositories is never run"),
        ({"parallelism_config": {"tp_size": 2}}, "of one tensor-parallel model would have to train the same"),
        ({"model_init_kwargs": {"tp_plan": "auto"}}, "'model_init_kwargs.tp_plan' cannot be set here: every"),
        (
            {"gradient_accumulation_steps": 3},
            "is 8; it must be even .* divisible by trl.gradient_accumulation_steps",
        ),
        ({"optim": "sgdd"}, "GRPOConfig refuses optim='sgdd'"),
    ],
)
def test_grpo_config_refuses_with_the_key_and_the_reason(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        config(tmp_path, options)


def test_grpo_config_names_every_bad_key_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'betta'.*'seed'"):
        config(tmp_path, {"betta": 0.1, "seed": 1})


def test_grpo_config_refuses_an_odd_batch(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="group_size is 7; it must be even"):
        config(tmp_path, {}, rows=7)


@pytest.mark.parametrize(("config_class", "owned"), [(GRPOConfig, GRPO_OWNED), (SFTConfig, SFT_OWNED)])
def test_every_owned_name_is_a_field_of_the_config(config_class: type, owned: dict[str, str]) -> None:
    assert set(owned) <= {field.name for field in dataclasses.fields(config_class)}
    assert set(OWNED) <= set(owned)
