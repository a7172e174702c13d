"""Sets of row numbers as sorted, disjoint, inclusive ranges: `((3, 7), (9, 9))`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ranges = tuple[tuple[int, int], ...]
Numbers = npt.NDArray[np.int64]


def to_ranges(numbers: Iterable[int] | Numbers) -> Ranges:
    """The ranges that hold exactly `numbers` (any order, repeats allowed)."""
    values = np.unique(np.fromiter(numbers, np.int64) if not isinstance(numbers, np.ndarray) else numbers)
    if not len(values):
        return ()
    breaks = np.flatnonzero(np.diff(values) != 1)
    firsts = values[np.concatenate([[0], breaks + 1])]
    lasts = values[np.concatenate([breaks, [len(values) - 1]])]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def to_numbers(ranges: Iterable[tuple[int, int]]) -> Numbers:
    """Every number in `ranges`, sorted, each once."""
    parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in ranges]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def among(numbers: Numbers, known: Numbers) -> npt.NDArray[np.bool_]:
    """Mask over `numbers` of those that are in `known` (sorted)."""
    if not len(known):
        return np.zeros(len(numbers), np.bool_)
    at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    there: npt.NDArray[np.bool_] = known[at] == numbers
    return there


def size(ranges: Ranges) -> int:
    """How many numbers the ranges hold."""
    return sum(last - first + 1 for first, last in ranges)


def gaps(present: Numbers, end: int) -> Ranges:
    """The numbers of 0 .. end - 1 that are not in `present` (sorted, unique)."""
    edges = np.concatenate([[-1], present[present < end], [end]])
    holes = np.flatnonzero(np.diff(edges) > 1)
    return tuple((int(edges[i]) + 1, int(edges[i + 1]) - 1) for i in holes.tolist())


def ranges_text(ranges: Ranges, limit: int = 8) -> str:
    """`3-7, 9`, cut after `limit` ranges."""
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:limit]]
    more = f" and {len(ranges) - limit} more ranges" if len(ranges) > limit else ""
    return ", ".join(parts) + more
