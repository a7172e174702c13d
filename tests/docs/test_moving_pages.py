"""The pages for those who come from elsewhere name keys that recipes have, and arguments that TRL has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from rft_data.recipe.modes import MODES
from tests.docs.blocks import ROOT, blocks, run_block

_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*")


def rows(page: Path, heading: str) -> Iterator[tuple[list[str], list[str]]]:
    """The names in code of the first two columns, for each row of the table under a heading."""
    table = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for line in table.splitlines():
        if line.startswith("| `"):
            theirs, ours = line.strip("| ").split(" | ")[:2]
            yield re.findall(r"`([^`]+)`", theirs), re.findall(r"`([^`]+)`", ours)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value of this type may hold, also in a list or a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in sections_in(argument)]


def has_key(sections: list[type[BaseModel]], path: list[str]) -> bool:
    """Whether a recipe may have a key; entries of lists have no number in it."""
    found = [one.model_fields[path[0]] for one in sections if path[0] in one.model_fields]
    below = [section for field in found for section in sections_in(field.annotation)]
    return bool(found) and (len(path) == 1 or has_key(below, path[1:]))


@pytest.mark.parametrize(("page", "heading"), [("from_trinity.md", "Keys"), ("from_trl.md", "Arguments")])
def test_keys_named_as_ours_are_keys_of_recipes(page: str, heading: str) -> None:
    named = {key for _, ours in rows(ROOT / "docs" / page, heading) for key in ours}
    assert len(named) > 10
    modes = [*MODES.values()]
    wrong = [one for one in named if not _KEY.fullmatch(one) or not has_key(modes, one.split("."))]
    assert sorted(wrong) == []


@pytest.mark.slow
def test_arguments_named_as_trls_are_fields_of_its_config() -> None:
    from trl import GRPOConfig

    named = {name for theirs, _ in rows(ROOT / "docs" / "from_trl.md", "Arguments") for name in theirs}
    assert len(named) > 20
    assert sorted(named - set(GRPOConfig.__dataclass_fields__)) == []


@pytest.mark.slow
def test_the_recipe_that_a_script_becomes_has_trls_defaults() -> None:
    from trl import GRPOConfig

    (body,) = (one.body for one in blocks(ROOT / "docs" / "from_trl.md") if one.language == "yaml")
    recipe = YAML(typ="safe").load(body)
    fields = GRPOConfig.__dataclass_fields__
    (stage,), engine = recipe["stages"], recipe["explorer"]["engine"]
    assert stage["trl"]["loss_type"] == fields["loss_type"].default
    assert engine["options"]["gpu_memory_utilization"] == fields["vllm_gpu_memory_utilization"].default


def test_the_reward_of_a_script_is_one_of_a_rollout() -> None:
    reward = run_block("from_trl.md", "def brief(task")["brief"]
    assert reward(None, "four words are here") == 0.25


def test_a_key_that_is_none_is_found() -> None:
    assert has_key([*MODES.values()], ["explorer", "engine", "max_model_len"])
    assert not has_key([*MODES.values()], ["explorer", "engine", "max_modal_len"])
    assert not has_key([*MODES.values()], ["explorer", "group_size", "more"])
