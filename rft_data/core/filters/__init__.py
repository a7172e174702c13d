"""Filters over rows: a small typed tree, read from YAML, JSON or text, and turned into SQL.

Outside text never reaches a query engine: it becomes this tree, is checked against a schema, and only
then is SQL written from it. A null never matches, unless asked for with `is null`.
"""

from rft_data.core.filters.expression import parse_text
from rft_data.core.filters.mapping import parse_filter, to_json
from rft_data.core.filters.sql import to_sql
from rft_data.core.filters.tree import (
    And,
    Compare,
    Contains,
    Filter,
    In,
    IsNull,
    Not,
    Or,
    Scalar,
    bind,
    columns_of,
)

__all__ = [
    "And",
    "Compare",
    "Contains",
    "Filter",
    "In",
    "IsNull",
    "Not",
    "Or",
    "Scalar",
    "bind",
    "columns_of",
    "parse_filter",
    "parse_text",
    "to_json",
    "to_sql",
]
