"""Fragments of a table that a filter by row number must look at: each one's lowest and highest `seq`.

A fragment never gets rows, so what was read of it once holds for every version that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rft_data.core.filters import And, Compare, Filter, In, Or, Scalar

NUMBERED = frozenset({"experiences", "annotations"})
"""Tables that have the column `seq` and whose fragments hold stretches of it."""
_Span = tuple[int, int]
_NOTHING = (0, -1)


class Zones:
    """The spans of one table's fragments; safe to use from many threads."""

    def __init__(self) -> None:
        self._known: dict[str, _Span] = {}

    def __len__(self) -> int:
        return len(self._known)

    def holding(self, head: Any, where: Filter) -> list[Any] | None:
        """The fragments of a version in which a filter may find rows, in their order; None: all of them."""
        if not _by_number(where):
            return None
        fragments = head.get_fragments()
        names = [_name(fragment) for fragment in fragments]
        known = self._known
        new = [pair for pair in zip(names, fragments, strict=True) if pair[0] not in known]
        known = {name: known[name] for name in names if name in known} | _read(head, new)
        self._known = known  # without those of fragments that this version has no more
        kept = [f for name, f in zip(names, fragments, strict=True) if _may_hold(where, known[name])]
        return None if len(kept) == len(fragments) else kept


def _name(fragment: Any) -> str:
    """A name that no other fragment has: its number may be given again after a version was restored."""
    return "+".join(file.path for file in fragment.metadata.files)


def _read(head: Any, new: Sequence[tuple[str, Any]]) -> dict[str, _Span]:
    """The spans of fragments, from one scan of them all."""
    if not new:
        return {}
    rows = head.scanner(["seq"], fragments=[f for _, f in new], with_row_address=True).to_table()
    seqs, owners = rows["seq"].to_numpy(), rows["_rowaddr"].to_numpy() >> np.uint64(32)
    found = {}
    for name, fragment in new:
        own = seqs[owners == fragment.fragment_id]
        found[name] = (int(own.min()), int(own.max())) if len(own) else _NOTHING
    return found


def _by_number(where: Filter) -> bool:
    """Whether a filter lets rows of certain row numbers through only."""
    if isinstance(where, And):
        return any(map(_by_number, where.parts))
    if isinstance(where, Or):
        return bool(where.parts) and all(map(_by_number, where.parts))
    return isinstance(where, In | Compare) and where.column == "seq"


def _may_hold(where: Filter, span: _Span) -> bool:
    """Whether a filter may let a row through whose number is in a span; True where that is not known."""
    if isinstance(where, And):
        return all(_may_hold(part, span) for part in where.parts)
    if isinstance(where, Or):
        return any(_may_hold(part, span) for part in where.parts)
    if isinstance(where, In) and where.column == "seq":
        return any(_compared("eq", value, span) for value in where.values)
    return not isinstance(where, Compare) or where.column != "seq" or _compared(where.op, where.value, span)


def _compared(op: str, value: Scalar, span: _Span) -> bool:
    """Whether a number of a span may compare so with a value."""
    low, high = span
    if not isinstance(value, int | float):
        return True
    holds = {
        "eq": low <= value <= high,
        "lt": low < value,
        "le": low <= value,
        "gt": high > value,
        "ge": high >= value,
    }
    return holds.get(op, True)
