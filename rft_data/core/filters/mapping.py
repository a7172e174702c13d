"""Filters as plain values, for YAML recipes and HTTP: `{reward: {ge: 0.5}, source: rollout}`.

`column: value` is equality, `column: [values]` membership, `column: null` is-null, and
`column: {op: value, ...}` any of OPERATORS; keys of one mapping all hold. `all: [...]`, `any: [...]` and
`not: {...}` combine; a list at the top means all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from rft_data.core.errors import RecipeError
from rft_data.core.filters.tree import (
    MAX_DEPTH,
    MAX_NODES,
    OPS,
    And,
    Compare,
    Contains,
    Filter,
    In,
    IsNull,
    Not,
    Or,
    bind,
    invalid,
)
from rft_data.core.lookup import suggest

OPERATORS = (*OPS, "in", "not_in", "is_null", "contains", "starts_with")
_WORDS = ("all", "any", "not")


def parse_filter(value: Mapping[str, object] | Sequence[object], schema: pa.Schema) -> Filter:
    """The filter that a plain value describes, checked against `schema`.

    Raises: RecipeError with every problem found (unknown columns and operators, values that do not
        fit, too large or too deep).
    """
    reader = _Reader()
    made = reader.read(value, "", 1)
    try:
        bound = bind(made, schema)
    except RecipeError as err:
        if not reader.problems:
            raise
        reader.problems += [line.strip() for line in str(err).splitlines()[1:]]
    if reader.problems:
        raise invalid(reader.problems)
    return bound


class _Reader:
    """Builds the tree and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._nodes = 0

    def read(self, value: object, where: str, depth: int) -> Filter:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            self._wrong(where, f"it is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} parts.")
            return And(())
        if isinstance(value, Mapping):
            parts = [self._entry(key, item, where, depth) for key, item in value.items()]
            return parts[0] if len(parts) == 1 else And(tuple(parts))
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return And(tuple(self._parts(value, where, depth)))
        self._wrong(where, f"a filter is a mapping like {{reward: {{ge: 0.5}}}}, not {value!r:.100}.")
        return And(())

    def _entry(self, key: object, value: object, where: str, depth: int) -> Filter:
        here = f"{where}.{key}" if where else str(key)
        if key == "not":
            return Not(self.read(value, here, depth + 1))
        if key in _WORDS:
            if not isinstance(value, Sequence) or isinstance(value, str | bytes):
                self._wrong(here, f"wants a list of filters, not {value!r:.100}.")
                return And(())
            parts = tuple(self._parts(value, here, depth))
            return And(parts) if key == "all" else Or(parts)
        if not isinstance(key, str):
            self._wrong(here, "a column name is text.")
            return And(())
        return self._column(key, value, here)

    def _parts(self, values: Sequence[object], where: str, depth: int) -> list[Filter]:
        return [self.read(item, f"{where}[{place}]", depth + 1) for place, item in enumerate(values)]

    def _column(self, name: str, value: Any, where: str) -> Filter:
        if value is None:
            return IsNull(name)
        if isinstance(value, Mapping):
            parts = [self._operator(name, op, item, where) for op, item in value.items()]
            if not parts:
                self._wrong(where, f"no operator given; there are {', '.join(OPERATORS)}.")
            return parts[0] if len(parts) == 1 else And(tuple(parts))
        if isinstance(value, Sequence) and not isinstance(value, str):
            return In(name, tuple(value))
        return Compare(name, "eq", value)

    def _operator(self, name: str, op: object, value: Any, where: str) -> Filter:
        self._nodes += 1
        if op in ("in", "not_in"):
            if not isinstance(value, Sequence) or isinstance(value, str | bytes):
                self._wrong(where, f"'{op}' wants a list of values, not {value!r:.100}.")
                return And(())
            found = In(name, tuple(value))
            return found if op == "in" else Not(found)
        if op == "is_null":
            if not isinstance(value, bool):
                self._wrong(where, f"'is_null' wants true or false, not {value!r:.100}.")
            return IsNull(name) if value else Not(IsNull(name))
        if op in ("contains", "starts_with"):
            return Contains(name, value, prefix=op == "starts_with")
        if op not in OPS:
            self._wrong(
                where, f"no operator '{op}';{suggest(str(op), OPERATORS)} There are {', '.join(OPERATORS)}."
            )
            return And(())
        if value is None:
            self._wrong(where, f"'{op}' with null is never true; use is_null: true or false.")
            return And(())
        return Compare(name, op, value)

    def _wrong(self, where: str, what: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(f"{where}: {what}" if where else what)


def to_json(filter_: Filter) -> dict[str, object]:
    """The filter as a plain value that `parse_filter` reads back; times become ISO text."""
    match filter_:
        case And(parts):
            return {"all": [to_json(part) for part in parts]}
        case Or(parts):
            return {"any": [to_json(part) for part in parts]}
        case Not(part):
            return {"not": to_json(part)}
        case IsNull(column):
            return {column: {"is_null": True}}
        case In(column, values):
            return {column: {"in": [_plain(value) for value in values]}}
        case Contains(column, text, prefix):
            return {column: {"starts_with" if prefix else "contains": text}}
        case Compare(column, op, value):
            return {column: {op: _plain(value)}}


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
