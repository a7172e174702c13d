"""Filters as SQL for Lance (DataFusion) and DuckDB.

The SQL has only column names of the schema, operators of a fixed list, and escaped literals.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

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
    Scalar,
    bind,
    both_zeros,
)

_SIGNS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFINITE = "CAST('inf' AS DOUBLE)"
_LOWEST = -(2**63)


def to_sql(filter_: Filter, schema: pa.Schema) -> str:
    """The filter as one SQL expression over `schema`'s columns.

    Raises: RecipeError if it does not fit the schema (every problem at once).
    """
    return _expression(bind(filter_, schema), schema)


def _expression(filter_: Filter, schema: pa.Schema, negated: bool = False) -> str:
    """The SQL of a filter or of its negation.

    A NOT is moved down to single columns, and a negated IN says that a null does not match: DataFusion merges
    two IN lists over one column into one without looking at nulls, and under a NOT that would let them in.
    """
    match filter_:
        case And(parts) | Or(parts):
            word = "AND" if isinstance(filter_, And) is not negated else "OR"
            made = f" {word} ".join(_expression(part, schema, negated) for part in parts)
            return f"({made})" if made else "true" if word == "AND" else "false"
        case Not(part):
            return _expression(part, schema, not negated)
    leaf = _leaf(filter_, schema.field(filter_.column))
    if not negated:
        return leaf
    if isinstance(filter_, In) and filter_.values:
        return f"({filter_.column} IS NOT NULL AND NOT {leaf})"
    return f"(NOT {leaf})"


def _leaf(leaf: Leaf, field: pa.Field) -> str:
    name = field.name
    match leaf:
        case IsNull():
            return f"({name} IS NULL)"
        case In(_, values):
            if not values:
                return "false"
            return f"({name} IN ({', '.join(literal(value) for value in both_zeros(values))}))"
        case Contains(_, text, prefix):
            return f"({'starts_with' if prefix else 'contains'}({name}, {literal(text)}))"
        case Compare(_, op, value):
            compared = f"{name} {_SIGNS[op]} {literal(value)}"
            if op in ("gt", "ge") and pa.types.is_floating(field.type):
                compared += f" AND {name} <= {_INFINITE}"  # both engines order NaN above every number
            return f"({compared})"


def literal(value: Scalar) -> str:
    """A checked value as an SQL literal."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(sep=' ')}+00:00'"
    if isinstance(value, float):
        text = repr(value)
        return text if "e" in text else text + "e0"  # without an exponent DuckDB reads a DECIMAL
    return f"CAST('{value}' AS BIGINT)" if value == _LOWEST else str(value)
