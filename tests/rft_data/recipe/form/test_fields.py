"""The form of a recipe has all its values, each with what the schema says of it."""

from functools import cache

import pytest

from rft_data.recipe.form.editing import edited
from rft_data.recipe.form.fields import CHOICE, Field, parts
from rft_data.recipe.form.schema_node import Schema
from rft_data.recipe.json_schema import recipe_schema
from rft_data.recipe.leaves import dotted, leaves
from rft_data.recipe.shipped import shipped_recipe
from rft_data.recipe.yaml_text import parse_yaml


@cache
def schema() -> Schema:
    return Schema(recipe_schema())


def fields(text: str) -> dict[str, Field]:
    tree = parse_yaml(text, "x", keep_lines=True)
    assert isinstance(tree, dict)
    return {field.key: field for part in parts(schema(), tree) for field in part.fields}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["quickstart", "calculator", "courtesy_ppo", "sums_dpo", "task_curation", "sums_eval"]
)
def test_every_value_lies_in_a_field_that_gives_it_back(name: str) -> None:
    text = shipped_recipe(name).path.read_text()
    found = fields(text)
    for key, _ in leaves(parse_yaml(text, "x")):
        assert any(dotted(key) == one or dotted(key).startswith(f"{one}.") for one in found), key
    given = {
        key: (field.kind if field.kind != CHOICE else "yaml", field.value) for key, field in found.items()
    }
    again, mistakes = edited(text, {key: one for key, one in given.items() if one[1]})
    assert not mistakes
    assert parse_yaml(again, "x") == parse_yaml(text, "x")


@pytest.mark.slow
def test_a_field_has_doc_default_bounds_and_choices() -> None:
    found = fields(shipped_recipe("quickstart").path.read_text())
    group = found["explorer.group_size"]
    assert (group.value, group.bounds, group.kind) == ("8", "at least 1", "yaml")
    assert found["explorer.engine.swap"].choices == ["drain", "continue", "recompute"]
    assert found["explorer.engine.swap"].default == '"drain"'
    assert all(
        name in found["tasks.0.source.use"].bounds for name in ("jsonl", "reasoning_gym", "huggingface")
    )
    assert "for example sft, dpo" in found["stages.0.algorithm"].bounds
    assert "checkpoints" in found["run_dir"].doc
    assert found["tasks.0.name"].is_required
    assert not found["evaluation.samples"].is_required


def test_a_recipe_without_a_mode_asks_for_it() -> None:
    assert list(fields("name: a\n")) == ["mode"]
    assert fields("mode: onlin\n")["mode"].choices == [
        "data",
        "eval",
        "explore",
        "offline",
        "online",
        "train",
    ]


def test_what_is_inherited_stands_behind_the_field() -> None:
    below = parse_yaml(shipped_recipe("sums_grpo").path.read_text(), "x")
    assert isinstance(below, dict)
    found = {one.key: one for part in parts(schema(), {"seed": 3}, below) for one in part.fields}
    assert (found["seed"].value, found["explorer.max_tokens"].value) == ("3", "")
    assert found["explorer.max_tokens"].default == str(below["explorer"]["max_tokens"])


@pytest.mark.parametrize(
    "odd", ["tasks: 3", "explorer: [a]", "stages: {a: 1}", "stages: [3, {x: 1}]", "model: a"]
)
def test_sections_of_another_form_are_fields_too(odd: str) -> None:
    key = odd.partition(":")[0]
    found = fields(f"mode: online\n{odd}\n")
    assert any(one.key.startswith(key) and one.value for one in found.values())


@pytest.mark.slow
def test_a_long_list_is_one_field() -> None:
    entry = "  - {name: a, source: {use: jsonl, path: x}}\n"
    found = fields("mode: online\ntasks:\n" + entry * 200)
    assert found["tasks"].value.count("name: a") == 200
    assert len(found) < 300
