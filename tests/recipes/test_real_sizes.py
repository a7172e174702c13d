"""The recipes for real sizes, which are not run here: TRL takes their settings; loading checks vLLM's."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from rft_data.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
ROWS = {
    "gsm8k_1gpu": 128,
    "gsm8k_lora_1gpu": 128,
    "gsm8k_8gpu": 512,
    "gsm8k_ray": 512,
    "code_mbpp": 128,
    "verifiers_1gpu": 128,
}
"""Rows that an optimizer step trains on."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_trl_takes_the_settings_of_a_real_size(name: str, tmp_path: Path) -> None:
    from trainers.policy.grpo_config import grpo_config

    recipe = load_recipe(RECIPES / f"{name}.yaml", [])
    (stage,) = recipe.stages
    rows = stage.groups_per_step * recipe.explorer.group_size
    config = grpo_config(tmp_path, steps=stage.steps, rows_per_step=rows, options=stage.trl, seed=0)
    processes = recipe.placement.trainer.processes
    assert rows == ROWS[name]
    assert config.per_device_train_batch_size == 8 * processes  # of all together; each has eight
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == rows


@pytest.mark.parametrize("name", ROWS)
def test_a_real_size_says_that_it_was_not_run(name: str) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    header = "\n".join(takewhile(lambda line: line.startswith("#"), lines))
    assert "NOT RUN BY US" in header
    assert "Needs:" in header
