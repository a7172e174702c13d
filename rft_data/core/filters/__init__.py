"""Filters over rows: a small typed tree, read from YAML, JSON or text, and turned into SQL.

A user's text never reaches a query engine: it is parsed to this tree, checked against a schema, and SQL is
written from the tree. A null never matches, except with `is null`.
"""

from rft_data.core.filters.expression import parse_text, read_text, to_text
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
    filter_columns,
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
    "filter_columns",
    "parse_filter",
    "parse_text",
    "read_text",
    "to_json",
    "to_sql",
    "to_text",
]
