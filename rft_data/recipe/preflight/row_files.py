"""Files of rows that are no tasks: what imports are read as, and the columns of rollouts to score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rft_data.core.errors import RftError
from rft_data.core.lookup import suggest
from rft_data.exchange.formats.registry import detect
from rft_data.recipe.import_columns import WANTED
from rft_data.recipe.preflight.columns import (
    RECOGNISED_FROM,
    SLOW,
    column_names,
    condition_problems,
    first_rows,
    has_column,
)
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.section import Loc

_PARTS = ("prompt", "completion", "chosen", "rejected", "label")
"""Keys of an import that name columns."""
_MEND = f"name it with 'format', or name the columns: {WANTED}"
Rows = Sequence[Mapping[str, object]]


def row_problems(tree: Tree) -> Iterator[Problem]:
    """Rows that fit no format, columns that are not there, and conditions that cannot be evaluated."""
    for loc, entry in entries(tree, "imports"):
        named = value(entry, "path")
        place: Loc = (*loc, "path") if isinstance(named, str) else (*loc, "source", "path")
        path = named if isinstance(named, str) else value(entry, "source", "path")
        if (found := _read(path, "file")) is None:
            continue
        rows, wrong = found
        if wrong:
            yield Problem(place, wrong)
        yield from condition_problems(loc, entry, rows)
        named_parts = [(part, one) for part in _PARTS if isinstance(one := entry.get(part), str)]
        if rows and named_parts:
            named_columns = [((*loc, part), one) for part, text in named_parts for one in column_names(text)]
            yield from _absent(named_columns, rows, str(path))
        elif rows and entry.get("format") is None:
            try:
                detect(rows[:RECOGNISED_FROM], str(path), mend=_MEND)
            except RftError as err:
                yield Problem(place, str(err))
    for loc, entry in entries(tree, "rollouts"):
        path, use = value(entry, "source", "path"), value(entry, "source", "use")
        if use in ("file", "jsonl") and (found := _read(path, use)) is not None:
            rows, wrong = found
            if wrong:
                yield Problem((*loc, "source", "path"), wrong)
            yield from condition_problems(loc, entry, rows)
            yield from _lacking(loc, entry, rows, str(path))


def _read(path: object, use: str) -> tuple[Rows, str] | None:
    """The first rows of a file, and why they cannot be read; None for what is not looked at here."""
    if not isinstance(path, str) or path.endswith(SLOW) or not Path(path).is_file():
        return None
    try:
        return first_rows(Path(path), use), ""
    except RftError as err:
        return [], str(err)


def _lacking(loc: Loc, entry: Tree, rows: Rows, path: str) -> Iterator[Problem]:
    named: list[tuple[Loc, object]] = [((*loc, "prompt"), entry.get("prompt", "question"))]
    for place, one in entries(entry, "completions"):
        named += [((*loc, *place, key), one.get(key)) for key in ("text", "label")]
    yield from _absent(named, rows, path)


def _absent(named: Sequence[tuple[Loc, object]], rows: Rows, path: str) -> Iterator[Problem]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for at, field in named:
        if rows and isinstance(field, str) and not any(has_column(row, field) for row in rows):
            hint = suggest(field, columns)
            yield Problem(
                at, f"'{path}' has no column '{field}';{hint} name one of its columns: {', '.join(columns)}"
            )
