"""The recipes for real sizes, which are not run here: TRL takes their settings; loading checks vLLM's."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import pytest

from rft_data.recipe import load_recipe
from rft_data.run.outlook.lines import outlook_lines

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
_QWEN = {"model_type": "qwen2", "num_hidden_layers": 28, "vocab_size": 152064}
_WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
SIZES = {
    "1.5B": {**_QWEN, **dict(zip(_WIDTHS, (1536, 8960, 12, 2), strict=True)), "tie_word_embeddings": True},
    "7B": {**_QWEN, **dict(zip(_WIDTHS, (3584, 18944, 28, 4), strict=True)), "tie_word_embeddings": False},
}
"""The config.json of Qwen2.5, as far as memory follows from it, by what a recipe calls the model's size."""


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_real_size_fits_on_the_gpus_that_its_recipe_asks_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFT_MODEL", raising=False)
    asked = load_recipe(RECIPES / f"{name}.yaml", []).model.path
    (size,) = (config for label, config in SIZES.items() if f"-{label}" in str(asked))
    (tmp_path / "config.json").write_text(json.dumps(size))
    recipe = load_recipe(RECIPES / f"{name}.yaml", [f"model.path={tmp_path}"])
    verdicts = [line for line in outlook_lines(recipe, "80GB") if line.startswith("fits ")]
    assert verdicts
    assert [line for line in verdicts if "DOES NOT FIT" in line] == []
