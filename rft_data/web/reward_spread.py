"""How stored rewards are spread: those of each part of the table are read once, and kept sorted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.buffer.parts import Part
from rft_data.reading.tags import frontier
from rft_data.web.part_cache import Kept
from rft_data.web.row_choice import WINDOW, Choice

_BINS = 20
_Rewards: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Bin:
    """Experiences whose stored reward lies in [low, high); in the last one also `high`."""

    low: float
    high: float
    count: int
    where: str
    """The filter that shows them."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How stored rewards are spread."""

    bins: tuple[Bin, ...]
    """Empty where no row has a reward."""
    newest: int | None
    """How many of the newest rows were looked at; None: all."""


_SORTED: Kept[_Rewards] = Kept(32 << 20, lambda rewards: int(rewards.nbytes))
"""Sorted rewards of the parts of all buffers, by part and filter; 4,000,000 rows take 16 MiB."""


def histogram(buffer: Buffer, choice: Choice, text: str) -> Spread:
    """How the stored rewards of the chosen rows are spread, among the newest where there are very many.

    Args: text: the filter as it was written, which the filters of the bins narrow.
    """
    found = _by_part(buffer, choice)
    sorted_, newest = _searched(buffer, choice) if found is None else found
    sorted_ = [rewards for rewards in sorted_ if len(rewards)]
    if not sorted_:
        return Spread((), newest)
    edges = _edges(min(float(one[0]) for one in sorted_), max(float(one[-1]) for one in sorted_))
    counts = np.sum([_counts(rewards, edges) for rewards in sorted_], axis=0)
    return Spread(tuple(_bins(edges, counts, text)), newest)


def _by_part(buffer: Buffer, choice: Choice) -> tuple[list[_Rewards], int | None] | None:
    """Rewards by part, of the newest parts that may be looked at in one go, and how many rows these have.

    None: the choice does not go by single rows, or a part is too large to be left out or looked at.
    """
    reach = choice.reach()
    if choice.verdict or reach <= WINDOW:
        return None
    parts, seen = list(buffer.parts("experiences")), 0
    newest = []
    for part in reversed(parts):
        if seen + part.rows > reach:
            break
        newest.append(part)
        seen += part.rows
    if len(newest) < len(parts) and 2 * seen < reach:
        return None
    return [_rewards(part, choice) for part in newest], None if len(newest) == len(parts) else seen


def _rewards(part: Part, choice: Choice) -> _Rewards:
    """The rewards of the rows of a part that a choice without a verdict lets through, sorted."""
    key = part.name, repr(choice.where)
    return _SORTED.of(key, lambda: _sorted(part.read(["reward"], choice.where)["reward"]))


def _searched(buffer: Buffer, choice: Choice) -> tuple[list[_Rewards], int | None]:
    """The rewards that one search of the newest rows finds."""
    end = frontier(buffer)
    bottom = max(0, end - choice.reach())
    rewards = choice.read(buffer, ["seq", "reward"], bottom, end)["reward"]
    return [_sorted(rewards)], end - bottom if bottom else None


def _sorted(column: pa.ChunkedArray) -> _Rewards:
    values = column.drop_null().to_numpy()
    return np.sort(values[np.isfinite(values)])


def _counts(rewards: _Rewards, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """How many of sorted rewards each bin has; the last one has those at its upper edge too."""
    places = np.searchsorted(rewards, edges.astype(np.float32))
    places[-1] = np.searchsorted(rewards, np.float32(edges[-1]), side="right")
    return np.diff(places)


def _bins(edges: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], text: str) -> Iterator[Bin]:
    for number, count in enumerate(counts):
        first, last = float(edges[number]), float(edges[number + 1])
        upper = "<=" if number == len(counts) - 1 else "<"
        own = f"reward >= {first!r} and reward {upper} {last!r}"
        yield Bin(first, last, int(count), f"({text}) and {own}" if text.strip() else own)


def _edges(low: float, high: float) -> npt.NDArray[np.float64]:
    """Edges of at most 20 bins, numbers of the column's type; all differ unless there is one value alone."""
    share = np.linspace(0, 1, _BINS + 1)
    edges = np.unique(np.clip(low * (1 - share) + high * share, low, high).astype(np.float32))
    return edges.astype(np.float64) if len(edges) > 1 else np.array([low, high])
