"""The tasks of a new recipe: source, columns and reward, from the first rows of the data.

Columns are recognised as a run and `rft data check` recognise them; others are named by the usual names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rft_data.core.errors import RecipeError, RftError, RowError
from rft_data.core.rows import Task
from rft_data.exchange.formats.families import recognised, task_in
from rft_data.exchange.formats.records import Format, Origin
from rft_data.recipe.named_source import GENERATED, named_rows, source_section
from rft_data.recipe.new_reward import OWN_REWARD, answer_reward
from rft_data.recipe.yaml_text import as_text, flow

_LOOKED_AT = 50
"""Rows whose answers are looked at."""
_PROMPTS = ("question", "prompt", "problem", "instruction", "messages")
_ANSWERS = ("answer", "solution", "ground_truth", "expected_answer")
_TESTS = ("tests", "test_list", "input_output")
"""Metadata that the reward `code_tests` reads."""
_KEPT = "    # metadata: [...]  # fields of the dataset that its own scorer reads, if any: docs/rewards.md\n"
_UNANSWERED = (
    f"    # no column is a reference answer: {OWN_REWARD} judges, for you to write; docs/rewards.md\n"
)
Said = tuple[str, Mapping[str, object]]
"""The lines about columns, and the reward as a component of a recipe."""


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
    rows = list(_first_rows(data))
    columns, reward = _named(data, prompt, answer, rows) if prompt or answer else _recognised(data, rows)
    source = {key: value for key, value in source_section(data).items() if value is not None}
    return {
        "__SOURCE__": flow(source),
        "__COLUMNS__": f"    # columns: {', '.join(rows[0])}\n{columns}",
        "__REWARD__": flow(dict(reward)),
    }


def _first_rows(data: str) -> Iterator[Mapping[str, Any]]:
    """The first rows that can be read.

    Raises: RecipeError for a source without rows, RowError for a first row that cannot be read.
    """
    found = list(islice(named_rows(data).rows, _LOOKED_AT))
    if not found:
        raise RecipeError(f"{data} is empty; give a file with rows.")
    if found[0].row is None:
        raise RowError(f"{found[0].place}: {found[0].reason}.")
    return (one.row for one in found if one.row is not None)


def _recognised(data: str, rows: Sequence[Mapping[str, Any]]) -> Said:
    """The columns and the reward of a dataset whose columns are recognised.

    Where they are not, or as a prompt alone beside what could be its answer: as `_named`.
    """
    try:
        chosen = recognised(rows[:1], data)
        task = task_in(chosen, dict(rows[0]), Origin("new"))
    except RftError:
        return _named(data, None, None, rows)
    lines = f"    # prompt and answer are recognised: {chosen.name}; docs/tasks.md\n"
    if task.answer is not None:
        said, reward = answer_reward([task.answer, *_answers(chosen, rows[1:])])
        return lines + said, reward
    if _has_tests(task):
        return f"    # prompt and tests are recognised: {chosen.name}; docs/tasks.md\n", {"use": "code_tests"}
    if any(name in rows[0] for name in _ANSWERS):
        return _named(data, None, None, rows)
    lines = f"    # the prompt is recognised: {chosen.name}; docs/tasks.md\n{_UNANSWERED}"
    return lines, {"use": OWN_REWARD}


def _answers(chosen: Format, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The answers of rows that make a task with one."""
    for row in rows:
        try:
            answer = task_in(chosen, dict(row), Origin("new")).answer
        except RftError:
            continue  # a run sets it aside
        if answer is not None:
            yield answer


def _has_tests(task: Task) -> bool:
    return any(task.metadata.get(name) for name in _TESTS)


def _named(data: str, prompt: str | None, answer: str | None, rows: Sequence[Mapping[str, object]]) -> Said:
    """The lines that name the columns, and the reward. Raises: RecipeError."""
    row = rows[0]
    asked = _column("prompt", prompt, _PROMPTS, row, data)
    if answer is None and any(row.get(name) for name in _TESTS) and not any(name in row for name in _ANSWERS):
        return f"    prompt: {as_text(asked)}\n    answer: null\n", {"use": "code_tests"}
    known = _column("answer", answer, _ANSWERS, row, data)
    answers = [str(one[known]) for one in rows if one.get(known) is not None]
    if not answers:
        raise RecipeError(
            f"{data}: column '{known}' is empty in the first {len(rows)} rows; name another with --answer."
        )
    said, reward = answer_reward(answers)
    return f"    prompt: {as_text(asked)}\n    answer: {as_text(known)}\n{said}", reward


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
