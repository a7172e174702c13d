"""The filter tree, and the check that one fits a schema.

Truth is three-valued as in SQL: a comparison with a null is unknown, `not` unknown is unknown, and a
row matches only when the whole filter is true. Text compares by code point; -0.0 equals 0.0; a NaN
satisfies no order comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

import numpy as np
import pyarrow as pa

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest

Scalar = str | int | float | datetime
Op = Literal["eq", "ne", "lt", "le", "gt", "ge"]
OPS: tuple[Op, ...] = ("eq", "ne", "lt", "le", "gt", "ge")

MAX_DEPTH = 16
"""Nesting; the SQL planner hangs on trees much deeper than this."""
MAX_NODES = 2_000
MAX_VALUES = 100_000
"""Literals of one filter, lists included."""
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Compare:
    """`column op value`; unknown where the column is null."""

    column: str
    op: Op
    value: Scalar


@dataclass(frozen=True, slots=True)
class In:
    """The column holds one of the values; with no values, false for every row."""

    column: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column holds no value."""

    column: str


@dataclass(frozen=True, slots=True)
class Contains:
    """A text column holds `text`, anywhere or (`prefix`) at its start; case counts."""

    column: str
    text: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class And:
    """All parts; true when there are none."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part; false when there are none."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of `part`."""

    part: Filter


Filter = Compare | In | IsNull | Contains | And | Or | Not
Leaf = Compare | In | IsNull | Contains


def walk(filter_: Filter, depth: int = 1) -> Iterator[tuple[Filter, int]]:
    """Every node with its depth, the root first."""
    yield filter_, depth
    parts = (filter_.part,) if isinstance(filter_, Not) else getattr(filter_, "parts", ())
    if depth <= MAX_DEPTH:
        for part in parts:
            yield from walk(part, depth + 1)


def filter_columns(filter_: Filter) -> set[str]:
    """Names of the columns that a filter reads."""
    return {node.column for node, _ in walk(filter_) if not isinstance(node, And | Or | Not)}


def bind(filter_: Filter, schema: pa.Schema) -> Filter:
    """The filter with every literal in its column's type: rounded to float32, a time in UTC, and so on.

    Raises: RecipeError naming every column that the schema lacks and every value that does not fit,
        or a filter too large.
    """
    problems = size_problems(filter_)
    if problems:
        raise invalid(problems)
    bound = _bind(filter_, schema, problems)
    if problems:
        raise invalid(problems)
    return bound


def both_zeros(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """The values, with 0.0 in both signs, because Arrow and Lance compare members bit by bit."""
    zero = any(isinstance(value, float) and value == 0 for value in values)
    return (*values, 0.0, -0.0) if zero else values


def invalid(problems: list[str]) -> RecipeError:
    """One error that lists every problem."""
    return RecipeError("the filter is not valid:\n" + "\n".join(f"  {problem}" for problem in problems))


def size_problems(filter_: Filter) -> list[str]:
    """Descriptions of the limits that the filter exceeds."""
    values = 0
    for nodes, (node, depth) in enumerate(walk(filter_), 1):
        values += len(node.values) if isinstance(node, In) else 0
        if depth > MAX_DEPTH:
            return [f"it is nested deeper than {MAX_DEPTH}; write it flatter."]
        if nodes > MAX_NODES:
            return [f"it has more than {MAX_NODES} parts; use 'in' for lists of values."]
    return [f"it has {values} values; at most {MAX_VALUES} are allowed."] if values > MAX_VALUES else []


def _bind(filter_: Filter, schema: pa.Schema, problems: list[str]) -> Filter:
    match filter_:
        case And(parts) | Or(parts):
            return replace(filter_, parts=tuple(_bind(part, schema, problems) for part in parts))
        case Not(part):
            return Not(_bind(part, schema, problems))
    if filter_.column not in schema.names:
        known = ", ".join(schema.names)
        problems.append(
            f"no column '{filter_.column}';{suggest(filter_.column, schema.names)} There are: {known}."
        )
        return filter_
    try:
        return _bind_leaf(filter_, schema.field(filter_.column).type)
    except ValueError as err:
        problems.append(f"{filter_.column}: {err}")
        return filter_


def _bind_leaf(leaf: Leaf, kind: pa.DataType) -> Leaf:
    match leaf:
        case Compare(_, op, value):
            if op not in OPS:
                raise ValueError(f"no operator '{op}'; there are {', '.join(OPS)}.")
            return replace(leaf, value=_literal(value, kind))
        case In(_, values):
            return replace(leaf, values=tuple(_literal(value, kind) for value in values))
        case Contains(_, text):
            if not pa.types.is_string(kind):
                raise ValueError(f"only a text column can contain a text; this one holds {kind}.")
            return replace(leaf, text=_text(text))
        case _:
            return leaf


def _literal(value: object, kind: pa.DataType) -> Scalar:
    """The value as the column's Python value. Raises ValueError."""
    if pa.types.is_string(kind):
        return _text(value)
    if pa.types.is_integer(kind):
        return _integer(value)
    if pa.types.is_floating(kind):
        return _float(value, kind)
    if pa.types.is_timestamp(kind):
        return _time(value)
    raise ValueError(f"a column of {kind} cannot be compared; only 'is null' works on it.")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"holds text, but {value!r} is {type(value).__name__}; quote it.")
    try:
        value.encode()
    except UnicodeEncodeError as err:
        raise ValueError(f"{value!r} is not valid Unicode ({err.reason}).") from err
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"holds whole numbers, but {value!r} is {type(value).__name__}.")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{value} does not fit 64 bits.")
    return value


def _float(value: object, kind: pa.DataType) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"holds numbers, but {value!r} is {type(value).__name__}.")
    with np.errstate(over="ignore"):
        try:
            rounded = float(np.dtype(kind.to_pandas_dtype()).type(value))
        except OverflowError:
            rounded = math.inf
    if not math.isfinite(rounded):
        raise ValueError(f"{value} is not a finite number of {kind}.")
    return rounded


def _time(value: object) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as err:
            raise ValueError(f"{value!r} is not a time; write for example '2026-01-31T12:00:00Z'.") from err
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise ValueError(f"holds times, but {value!r} is {type(value).__name__}.")
    try:
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    except OverflowError as err:
        raise ValueError(f"{value} is outside the years 1 to 9999.") from err
