"""A new recipe from a model, data and a goal: a commented file of `recipes/skeletons`, filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rft_data.core.errors import RecipeError, RftError, RowError
from rft_data.exchange.formats.families import recognised, task_in
from rft_data.exchange.formats.modelscope import open_named
from rft_data.exchange.formats.records import Origin
from rft_data.recipe.copying import SCHEMA_FILE, SCHEMA_LINE, write_new
from rft_data.recipe.json_schema import recipe_schema
from rft_data.recipe.named_source import GENERATED, source_section
from rft_data.recipe.new_lengths import TINY_MODEL, engine_lengths
from rft_data.recipe.shipped import shipped_folder
from rft_data.recipe.yaml_text import as_text

TINY = "tiny"
"""In place of a model: a tiny one of random weights, built here."""
_PROMPTS = ("question", "prompt", "problem", "instruction", "messages")
_ANSWERS = ("answer", "solution", "ground_truth", "expected_answer")
_KEPT = "    # metadata: [...]  # fields of the dataset that its own scorer reads, if any: docs/rewards.md\n"
_LETTER = re.compile(r"[A-J]")


class Goal(StrEnum):
    """What the recipe is for; also the skeleton's name."""

    GRPO = "grpo"
    """Reinforcement on tasks, by a reward."""
    DPO = "dpo"
    """Training on pairs of answers."""
    SFT = "sft"
    """Imitation of stored answers."""
    EVAL = "eval"
    """Measuring a model."""
    CURATE = "curate"
    """Cleaning tasks."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person says of a new recipe."""

    goal: Goal
    data: str
    """A file, a dataset's folder or `hf://org/name:split`, as `rft buffer import` takes them; for tasks also
    `reasoning_gym:NAME`."""
    model: str
    """A folder, a hub id, or `tiny`; not read for the goal `curate`."""
    prompt: str | None = None
    """Column of the prompt; None: found among the usual names."""
    answer: str | None = None
    """Column of the reference answer; None: found among the usual names."""


def write_recipe(wanted: Wanted, path: Path) -> None:
    """Write the recipe, and the schema that editors check it with beside it.

    Raises: RecipeError for columns that cannot be told, or another file in the way; MissingFileError.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "run"
    texts = {
        "name: __NAME__": f"name: {as_text(name)}",
        "__NAME__": name,
        "__FILE__": path.name,
        "__DATA__": wanted.data,
        "__MODEL__": TINY_MODEL if wanted.model == TINY else _flow({"path": wanted.model}),
        "__PATH__": json.dumps(wanted.model),
        **engine_lengths(wanted.model),
        **_tasks(wanted),
    }
    if wanted.goal is Goal.EVAL and wanted.model == TINY:
        raise RecipeError("a model built from a seed knows nothing to measure; give --model a folder.")
    text = (shipped_folder() / "skeletons" / f"{wanted.goal}.yaml").read_text()
    for mark, value in texts.items():
        text = text.replace(mark, value)
    schema = json.dumps(recipe_schema(), indent=1) + "\n"
    write_new({path: SCHEMA_LINE + text, path.parent / SCHEMA_FILE: schema})


def _tasks(wanted: Wanted) -> dict[str, str]:
    """Source, columns and reward of the tasks; nothing for goals that import their data."""
    if wanted.goal in (Goal.SFT, Goal.DPO):
        return {}
    if wanted.data.startswith(GENERATED):
        dataset = wanted.data.removeprefix(GENERATED)
        source = {"use": "reasoning_gym", "dataset": dataset, "size": 2000}
        reward = {"use": "reasoning_gym", "args": {"dataset": dataset}}
        return {"__SOURCE__": _flow(source), "__COLUMNS__": _KEPT, "__REWARD__": _flow(reward)}
    row = _first_row(wanted.data)
    columns, answer = _named(wanted, row) if wanted.prompt or wanted.answer else _found(wanted, row)
    is_letter = _LETTER.fullmatch(answer.strip())
    source = {key: value for key, value in source_section(wanted.data).items() if value is not None}
    return {
        "__SOURCE__": _flow(source),
        "__COLUMNS__": f"    # columns: {', '.join(row)}\n{columns}",
        "__REWARD__": _flow({"use": "multiple_choice" if is_letter else "math_verify"}),
    }


def _first_row(data: str) -> Mapping[str, object]:
    """Raises: RecipeError for a source without rows, RowError for a row that cannot be read."""
    found = next(open_named(data).rows, None)
    if found is None:
        raise RecipeError(f"{data} is empty; give a file with rows.")
    if found.row is None:
        raise RowError(f"{found.place}: {found.reason}.")
    return found.row


def _found(wanted: Wanted, row: Mapping[str, Any]) -> tuple[str, str]:
    """The lines about columns, and the first answer, of a dataset whose columns are recognised."""
    try:
        chosen = recognised([row], wanted.data)
        task = task_in(chosen, dict(row), Origin("new"))
    except RftError:
        return _named(wanted, row)
    if task.answer is None:
        return _named(wanted, row)
    return f"    # prompt and answer are recognised: {chosen.name}; docs/tasks.md\n", task.answer


def _named(wanted: Wanted, row: Mapping[str, object]) -> tuple[str, str]:
    """The lines that name the columns, and the first answer. Raises: RecipeError."""
    prompt = _column("prompt", wanted.prompt, _PROMPTS, row, wanted.data)
    answer = _column("answer", wanted.answer, _ANSWERS, row, wanted.data)
    return f"    prompt: {as_text(prompt)}\n    answer: {as_text(answer)}\n", str(row[answer])


def _column(
    what: str, given: str | None, usual: tuple[str, ...], row: Mapping[str, object], source: str
) -> str:
    """The column that was named, or the only one of the usual names. Raises: RecipeError."""
    found = [given] if given is not None else [name for name in usual if name in row]
    if len(found) == 1 and found[0] in row:
        return found[0]
    said = f"has no column '{given}'" if given is not None else f"has {found or 'none'} of {list(usual)}"
    raise RecipeError(
        f"{source} {said}, and its columns are {', '.join(row)}; say which is the {what} with --{what}."
    )


def _flow(value: Mapping[str, object]) -> str:
    """A map on one line of YAML."""
    inside = ", ".join(
        f"{key}: {_flow(one) if isinstance(one, dict) else one if _is_plain(one) else json.dumps(one)}"
        for key, one in value.items()
    )
    return f"{{{inside}}}"


def _is_plain(value: object) -> bool:
    return isinstance(value, int) or (
        isinstance(value, str) and re.fullmatch(r"[a-z][a-z_]*", value) is not None
    )
