"""Columns that a taskset names, looked for in the first rows of its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from rft_data.core.errors import RftError, RowError
from rft_data.core.lookup import suggest
from rft_data.exchange.formats.families import recognised
from rft_data.exchange.formats.inputs import open_source
from rft_data.exchange.formats.jsonlines import read_objects
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.section import Loc
from rft_data.tasks.columns import is_template, pick, template_fields
from rft_data.tasks.row_choice import passing

LOOKED_AT = 1000
"""Rows that are looked at."""
RECOGNISED_FROM = 20
"""Rows whose columns are recognised, as in a run."""
_COLUMNS = ("prompt", "answer", "images", "tools")
_TEXTS = ("system", "workflow", "reward")
"""Keys whose text names columns only where it is a template."""
SLOW = ".arrow"
"""Read by a child process, which is left to `--deep`."""


def column_problems(tree: Tree) -> Iterator[Problem]:
    """Columns, templates and conditions that the rows of a file do not fit."""
    for loc, taskset in entries(tree, "tasks"):
        path, use = value(taskset, "source", "path"), value(taskset, "source", "use")
        if use not in ("file", "jsonl") or not isinstance(path, str) or path.endswith(SLOW):
            continue
        try:
            rows = first_rows(Path(path), use)
        except RftError as err:
            if Path(path).exists():  # else it was said
                yield Problem((*loc, "source", "path"), str(err))
            continue
        if rows:
            yield from condition_problems(loc, taskset, rows)
            yield from _lacking(loc, taskset, rows, path, use)


def first_rows(path: Path, use: object) -> list[Mapping[str, object]]:
    """The rows of a file whose columns are looked at.

    Raises: RftError for a file that is not there or cannot be read."""
    if use == "jsonl":
        return [row for _, row in islice(read_objects(path), LOOKED_AT)]
    rows = []
    for found in islice(open_source(path).rows, LOOKED_AT):
        if found.row is None:
            raise RowError(f"{found.place}: {found.reason}")
        rows.append(found.row)
    return rows


def condition_problems(loc: Loc, taskset: Tree, rows: Sequence[Mapping[str, object]]) -> Iterator[Problem]:
    """A condition of a source that cannot be evaluated over its rows."""
    where = value(taskset, "source", "where")
    if not isinstance(where, str):
        return
    try:
        passing(rows, where)
    except RftError as err:
        whole = len(rows) < LOOKED_AT
        if whole or "not found in FROM clause" not in str(err):  # a later row may have the column
            yield Problem((*loc, "source", "where"), str(err))


def _lacking(
    loc: Loc, taskset: Tree, rows: Sequence[Mapping[str, object]], path: str, use: object
) -> Iterator[Problem]:
    for key, field in _fields(taskset, use):
        if not any(has_column(row, field) for row in rows):
            columns = list(dict.fromkeys(name for row in rows for name in row))
            hint = suggest(field, columns)
            place = (*loc, key) if key in taskset else loc
            yield Problem(
                place,
                f"'{path}' has no column '{field}';{hint} name one of its columns: {', '.join(columns)}",
            )
    if use == "file" and taskset.get("prompt") is None:
        try:
            recognised(rows[:RECOGNISED_FROM], path)
        except RftError as err:
            yield Problem((*loc, "source", "path"), str(err))


def _fields(taskset: Tree, use: object) -> Iterator[tuple[str, str]]:
    """(key, column) of every column that a taskset names."""
    defaults = {"prompt": "question", "answer": "answer"} if use == "jsonl" else {}
    given = {**defaults, **taskset}
    if use == "file" and given.get("prompt") is not None:
        given = {"answer": "answer", **given}
    for key in (*_COLUMNS, *_TEXTS):
        text = given.get(key)
        if isinstance(text, str) and (is_template(text) or key in _COLUMNS):
            yield from ((key, field) for field in column_names(text))
    kept = given.get("metadata")
    yield from (("metadata", one) for one in (kept if isinstance(kept, list) else []) if isinstance(one, str))


def column_names(text: str) -> list[str]:
    """The columns of a template, or the one that a text names; none for a broken template, told elsewhere."""
    try:
        return template_fields(text) if is_template(text) else [text]
    except RftError:
        return []


def has_column(row: Mapping[str, object], field: str) -> bool:
    """Whether a row has a column, or a value inside one."""
    try:
        pick(row, field, "")
    except RftError:
        return False
    return True
