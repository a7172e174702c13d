"""Choice of a table's rows that become tasks: a condition in SQL, a seeded shuffle, a limit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import pyarrow as pa

from rft_data.core.errors import RecipeError

PlacedRow: TypeAlias = tuple[str, Mapping[str, object]]
"""(where it stands, for errors; the row)."""
_NUMBER = "rft:row"
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


def chosen_rows(
    rows: Iterable[PlacedRow],
    *,
    where: str | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    batch_rows: int | None = None,
) -> Iterator[PlacedRow]:
    """The rows that `where` lets through, shuffled, the first `limit`.

    Args:
        where: a condition in DuckDB's SQL. shuffle: a seed.
        batch_rows: look at so many rows at a time, for tables that never end; None: at all of them.
    Raises: RecipeError for a condition that cannot be evaluated.
    """
    if where is not None:
        rows = _passing(rows, where, batch_rows)
    if shuffle is not None:
        mixed = list(rows)
        random.Random(shuffle).shuffle(mixed)  # noqa: S311 - an order that can be repeated, no secret
        rows = mixed
    return islice(rows, limit)


def _passing(rows: Iterable[PlacedRow], where: str, batch_rows: int | None) -> Iterator[PlacedRow]:
    rows = iter(rows)
    while batch := list(islice(rows, batch_rows)):
        yield from (batch[number] for number in passing([row for _, row in batch], where))


def passing(rows: Sequence[Mapping[str, object]], where: str) -> list[int]:
    """The numbers of the rows that a condition lets through.

    Raises: RecipeError for a condition that is no SQL, names other columns, or fails on a value.
    """
    import duckdb

    table = pa.table({**_columns(rows), _NUMBER: pa.array(range(len(rows)))})
    with duckdb.connect(":memory:", config=_SETTINGS) as connection:
        try:
            found = connection.from_arrow(table).filter(where).project(f'"{_NUMBER}"').fetchall()
        except duckdb.Error as err:
            columns = ", ".join(name for name in table.column_names if name != _NUMBER)
            reason = str(err).partition("\n")[0]
            raise RecipeError(
                f"'where' cannot be evaluated: {reason.rstrip('.')}. It is a condition in DuckDB's SQL over "
                f"the columns {columns}; found {where!r}."
            ) from err
    return sorted(number for (number,) in found)


def _columns(rows: Sequence[Mapping[str, object]]) -> dict[str, pa.Array]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: Sequence[object]) -> pa.Array:
    """The values as one Arrow column; as JSON text where they are of several types."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if one is None else json.dumps(one, default=str) for one in values])
