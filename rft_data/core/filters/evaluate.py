"""Filters without a query engine: on one row (the reference), and on an Arrow table."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.filters.tree import (
    And,
    Compare,
    Contains,
    Filter,
    In,
    IsNull,
    Leaf,
    Not,
    Or,
    bind,
    both_zeros,
)

_SIGNS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_COMPUTE = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def matches(filter_: Filter, row: Mapping[str, Any]) -> bool:
    """Whether the filter lets a row through.

    The filter's values are in their columns' types, as `bind`, `parse_filter` and `parse_text` give them.
    """
    return _truth(filter_, row) is True


def _truth(filter_: Filter, row: Mapping[str, Any]) -> bool | None:
    match filter_:
        case And(parts):
            found = [_truth(part, row) for part in parts]
            return False if False in found else None if None in found else True
        case Or(parts):
            found = [_truth(part, row) for part in parts]
            return True if True in found else None if None in found else False
        case Not(part):
            truth = _truth(part, row)
            return None if truth is None else not truth
        case _:
            return _leaf_truth(filter_, row[filter_.column])


def _leaf_truth(leaf: Leaf, value: Any) -> bool | None:
    match leaf:
        case IsNull():
            return value is None
        case In(_, values) if not values:
            return False
    if value is None:
        return None
    match leaf:
        case In(_, values):
            return value in values
        case Contains(_, text, prefix):
            return bool(value.startswith(text)) if prefix else text in value
        case Compare(_, op, wanted):
            return bool(_SIGNS[op](value, wanted))
    raise TypeError(f"{leaf!r} is not a filter.")


def mask(filter_: Filter, table: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """One boolean per row of the table: whether the filter lets it through; never null.

    Raises: RecipeError if the filter does not fit the table's schema.
    """
    made = _mask(bind(filter_, table.schema), table)
    made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    return pc.fill_null(made, False)


def _mask(filter_: Filter, table: pa.Table | pa.RecordBatch) -> Any:
    match filter_:
        case And(parts):
            made = _constant(True, table)
            for part in parts:
                made = pc.and_kleene(made, _mask(part, table))
            return made
        case Or(parts):
            made = _constant(False, table)
            for part in parts:
                made = pc.or_kleene(made, _mask(part, table))
            return made
        case Not(part):
            return pc.invert(_mask(part, table))
        case _:
            return _leaf_mask(filter_, table)


def _leaf_mask(leaf: Leaf, table: pa.Table | pa.RecordBatch) -> Any:
    column = table.column(leaf.column)
    match leaf:
        case IsNull():
            return pc.is_null(column)
        case Contains(_, text, prefix):
            return (pc.starts_with if prefix else pc.match_substring)(column, pattern=text)
        case Compare(_, op, value):
            return pc.call_function(_COMPUTE[op], [column, pa.scalar(value, column.type)])
        case In(_, values):
            if not values:
                return _constant(False, table)
            found = pc.is_in(column, value_set=pa.array(both_zeros(values), column.type))
            return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))


def _constant(value: bool, table: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([value] * table.num_rows, pa.bool_())
