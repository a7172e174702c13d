"""`rft recipe validate --deep`: what shows when libraries, tasks and tokenizer are loaded, all at once."""

import json
import re
from pathlib import Path

import pytest

from rft_data.recipe import load_recipe
from rft_data.recipe.shipped import ShippedRecipe, shipped_recipes
from rft_data.run.deep_check import deep_problems
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.rft_data.run.test_online import write_recipe


def with_model(folder: Path, template: str | None) -> str:
    """An override for a model folder with a real tokenizer."""
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    rows = [{"question": "sum " * n, "answer": "1"} for n in (1, 2, 500)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"model={{path: {folder}/model}}"


@pytest.mark.slow
def test_all_that_cannot_be_built_is_named_at_once(tmp_path: Path) -> None:
    overrides = [
        "stages.0.trl={bf16: true, fp16: true}",
        "stages.1.trl={learning_rate: 1.0}",
        "experience_ops.1={reward_variance_filter: {min_std: -1}}",
        f"tasks.0.source={{use: jsonl, path: {tmp_path}/rows.jsonl}}",
        "explorer.max_tokens=60",
        with_model(tmp_path, QWEN25),
    ]
    found = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    assert len(found) == 3, found
    for part in (
        "SFTConfig refuses",
        "reward_variance_filter",
        "of the first 3 prompts have more than 4",
    ):
        assert any(part in one for one in found), (part, found)


NOT_HERE = re.compile(r"teacher '.*' is no folder|the tokenizer of '.*' cannot be loaded|[Rr]eward model")
"""A model that an earlier run leaves, or that is on the user's machine."""


@pytest.mark.slow
@pytest.mark.parametrize("one", shipped_recipes(), ids=lambda one: one.name)
def test_the_parts_of_every_shipped_recipe_can_be_built(
    one: ShippedRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", one.path.read_text()):
        monkeypatch.setenv(name, "given")
    without_tasks = load_recipe(one.path).model_copy(update={"tasks": []})
    assert [found for found in deep_problems(without_tasks) if not NOT_HERE.search(found)] == []


def test_a_tokenizer_without_a_template_is_told_before_the_run(tmp_path: Path) -> None:
    overrides = [with_model(tmp_path, None), f"tasks.0.source={{use: jsonl, path: {tmp_path}/rows.jsonl}}"]
    found = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    assert ["has no chat template" in one for one in found] == [True]
