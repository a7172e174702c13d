"""Reads the few rows that a filter names by an id: their places first, then their columns.

A scan decodes wide columns for whole stretches of a table; this decodes the filter's columns there and all
others for the rows found, in a quarter to a half of the CPU time (measured on 200,000 rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rft_data.core.filters import And, Compare, Filter, In

if TYPE_CHECKING:
    from lance import LanceDataset

_IDS = frozenset({"seq", "experience_id", "group_id", "lease_id", "preference_id", "payload_id"})
"""Columns of which one value belongs to few rows of any table."""
_MOST = 256
"""Values of one filter; the rows of more are not few."""


def names_few(where: Filter | None) -> bool:
    """Whether a filter lets only rows through that have one of a few values of an id."""
    if isinstance(where, And):
        return any(map(names_few, where.parts))
    if isinstance(where, Compare):
        return where.op == "eq" and where.column in _IDS
    return isinstance(where, In) and where.column in _IDS and len(where.values) <= _MOST


def few_rows(head: LanceDataset, columns: Sequence[str], chosen: str) -> pa.Table:
    """The rows of a Lance dataset that an SQL condition lets through, in the order they were written."""
    places = head.scanner([], chosen, with_row_id=True).to_table().column("_rowid").to_pylist()
    return head._take_rows(places, columns=list(columns))
