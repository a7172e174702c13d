"""What a new recipe says of its tasks: source, columns and reward, from the first row of the data.

Columns are recognised as a run and `rft data check` recognise them; others are named by the usual names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rft_data.core.errors import RecipeError, RftError, RowError
from rft_data.core.rows import Task
from rft_data.exchange.formats.families import recognised, task_in
from rft_data.exchange.formats.records import Origin
from rft_data.recipe.named_source import GENERATED, named_rows, source_section
from rft_data.recipe.yaml_text import as_text, flow

OWN_REWARD = "./my_reward.py:score"
"""The reward of tasks that have neither an answer nor tests: a file beside the recipe."""
_PROMPTS = ("question", "prompt", "problem", "instruction", "messages")
_ANSWERS = ("answer", "solution", "ground_truth", "expected_answer")
_TESTS = ("tests", "test_list", "input_output")
"""Metadata that the reward `code_tests` reads."""
_KEPT = "    # metadata: [...]  # fields of the dataset that its own scorer reads, if any: docs/rewards.md\n"
_UNANSWERED = (
    f"    # no column is a reference answer: {OWN_REWARD} judges, for you to write; docs/rewards.md\n"
)
_LETTER = re.compile(r"[A-J]")


def task_marks(data: str, prompt: str | None, answer: str | None) -> dict[str, str]:
    """The marks of a skeleton that stand for source, columns and reward.

    Args: data: as `source_section` takes it. prompt, answer: columns; None: recognised.
    Raises: RecipeError for columns that cannot be told; MissingFileError; RowError for an unreadable row.
    """
    if data.startswith(GENERATED):
        dataset = data.removeprefix(GENERATED)
        generated = {"use": "reasoning_gym", "dataset": dataset, "size": 2000}
        scorer = {"use": "reasoning_gym", "args": {"dataset": dataset}}
        return {"__SOURCE__": flow(generated), "__COLUMNS__": _KEPT, "__REWARD__": flow(scorer)}
    row = _first_row(data)
    columns, reward = _named(data, prompt, answer, row) if prompt or answer else _recognised(data, row)
    source = {key: value for key, value in source_section(data).items() if value is not None}
    return {
        "__SOURCE__": flow(source),
        "__COLUMNS__": f"    # columns: {', '.join(row)}\n{columns}",
        "__REWARD__": flow({"use": reward}),
    }


def _first_row(data: str) -> Mapping[str, Any]:
    """Raises: RecipeError for a source without rows, RowError for a row that cannot be read."""
    found = next(named_rows(data).rows, None)
    if found is None:
        raise RecipeError(f"{data} is empty; give a file with rows.")
    if found.row is None:
        raise RowError(f"{found.place}: {found.reason}.")
    return found.row


def _recognised(data: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """The lines about columns, and the reward's name, of a dataset whose columns are recognised.

    Where they are not, or as a prompt alone beside what could be its answer: as `_named`.
    """
    try:
        chosen = recognised([row], data)
        task = task_in(chosen, dict(row), Origin("new"))
    except RftError:
        return _named(data, None, None, row)
    lines = f"    # prompt and answer are recognised: {chosen.name}; docs/tasks.md\n"
    if task.answer is not None:
        return lines, _answer_reward(task.answer)
    if _has_tests(task):
        return f"    # prompt and tests are recognised: {chosen.name}; docs/tasks.md\n", "code_tests"
    if any(name in row for name in _ANSWERS):
        return _named(data, None, None, row)
    return f"    # the prompt is recognised: {chosen.name}; docs/tasks.md\n{_UNANSWERED}", OWN_REWARD


def _has_tests(task: Task) -> bool:
    return any(task.metadata.get(name) for name in _TESTS)


def _named(data: str, prompt: str | None, answer: str | None, row: Mapping[str, object]) -> tuple[str, str]:
    """The lines that name the columns, and the reward's name. Raises: RecipeError."""
    asked = _column("prompt", prompt, _PROMPTS, row, data)
    if answer is None and any(row.get(name) for name in _TESTS) and not any(name in row for name in _ANSWERS):
        return f"    prompt: {as_text(asked)}\n    answer: null\n", "code_tests"
    known = _column("answer", answer, _ANSWERS, row, data)
    return f"    prompt: {as_text(asked)}\n    answer: {as_text(known)}\n", _answer_reward(str(row[known]))


def _answer_reward(answer: str) -> str:
    """The reward that fits a reference answer."""
    return "multiple_choice" if _LETTER.fullmatch(answer.strip()) else "math_verify"


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
