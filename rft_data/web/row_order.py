"""Experiences ordered by reward, length, version or advantage, page by page (keyset paging)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.filters import And, Compare
from rft_data.reading.tags import frontier
from rft_data.web.listing import PAGE, ShownRow, numbered_rows
from rft_data.web.row_choice import WINDOW, Choice


class Order(StrEnum):
    """Orders of a table of experiences."""

    NEWEST = "newest"
    BEST = "best"
    """By reward, highest first."""
    WORST = "worst"
    LONGEST = "longest"
    """By sampled tokens."""
    SHORTEST = "shortest"
    LATEST_VERSION = "latest-version"
    EARLIEST_VERSION = "earliest-version"
    MOST_ADVANTAGE = "most-advantage"
    """By the mean of its newest advantage over its tokens."""
    LEAST_ADVANTAGE = "least-advantage"


@dataclass(frozen=True, slots=True)
class Ordered:
    """One page of experiences in an order."""

    rows: list[ShownRow]
    """The columns of COLUMNS, `judgements`, and `key`: the value that the order goes by."""
    after: str | None
    """The key of the last row, after which the next page begins; None: nothing is left."""
    newest: int | None
    """How many of the newest rows were looked at; None: all."""
    without: int
    """Chosen rows that have no value to go by; they are left out."""


def ordered(buffer: Buffer, choice: Choice, order: Order, after: str, most: int = PAGE) -> Ordered:
    """A page of the chosen rows in an order other than NEWEST; of equal ones the newest comes first.

    The newest 4,000,000 rows are looked at, or 50,000 where long columns must be read.
    Args: after: the key of the last row of the page before; empty: the first page.
    Raises: RowError when `after` is no such key.
    """
    columns, values, ascending = _KEYS[order]
    end = frontier(buffer)
    reach = WINDOW if columns == _ANNOTATED else choice.reach(*columns)
    bottom = max(0, end - reach)
    rows = choice.read(buffer, list(dict.fromkeys(["seq", *columns])), bottom, end)
    seqs, numbers = rows["seq"].to_numpy(), values(buffer, rows, bottom, end)
    known = np.isfinite(numbers)
    without = int(len(known) - known.sum())
    seqs, numbers = seqs[known], numbers[known] * (1 if ascending else -1)
    if after:
        value, seq = _key(after)
        value *= 1 if ascending else -1
        later = (numbers > value) | ((numbers == value) & (seqs < seq))
        seqs, numbers = seqs[later], numbers[later]
    first = np.lexsort((-seqs, numbers))[:most]
    found = {
        int(seq): float(value) * (1 if ascending else -1)
        for seq, value in zip(seqs[first], numbers[first], strict=True)
    }
    page = numbered_rows(buffer, list(found))
    for row in page:
        row["key"] = found[row["seq"]]
    last = next(reversed(found.items()), None) if len(seqs) > len(first) else None
    return Ordered(
        page,
        None if last is None else f"{last[1]!r}:{last[0]}",
        end - bottom if bottom else None,
        without,
    )


def _key(text: str) -> tuple[float, int]:
    value, _, seq = text.partition(":")
    try:
        return float(value), int(seq)
    except ValueError as err:
        raise RowError(f"'{text[:80]}' is no place in this order; wanted for example 0.5:120.") from err


_Numbers = npt.NDArray[np.float64]
_Values = Callable[[Buffer, pa.Table, int, int], _Numbers]
_ANNOTATED: tuple[str, ...] = ()
"""The order goes by a column of the annotations."""


def _column(name: str) -> _Values:
    def values(buffer: Buffer, rows: pa.Table, bottom: int, top: int) -> _Numbers:
        return _as_numbers(rows[name])

    return values


def _sampled_tokens(buffer: Buffer, rows: pa.Table, bottom: int, top: int) -> _Numbers:
    return _as_numbers(pc.subtract(pc.list_value_length(rows["action_mask"]), rows["prompt_length"]))


def _advantages(buffer: Buffer, rows: pa.Table, bottom: int, top: int) -> _Numbers:
    """The mean of the newest advantage of each row; NaN where it has none."""
    span = And((Compare("seq", "ge", bottom), Compare("seq", "lt", top)))
    found = buffer.read("annotations", ["seq", "advantage"], span)
    found = found.filter(pc.greater(pc.fill_null(pc.list_value_length(found["advantage"]), 0), 0))
    means = np.full(top - bottom, np.nan)
    if found.num_rows:
        lists = found["advantage"].combine_chunks()
        offsets = lists.offsets.to_numpy() - lists.offsets[0].as_py()
        sums = np.add.reduceat(lists.flatten().to_numpy().astype(np.float64), offsets[:-1])
        means[found["seq"].to_numpy() - bottom] = sums / np.diff(offsets)
    own: _Numbers = means[rows["seq"].to_numpy() - bottom]
    return own


def _as_numbers(column: pa.ChunkedArray) -> _Numbers:
    """The column as numbers, NaN where it is null."""
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), np.float64)


_LENGTH = ("action_mask", "prompt_length")
_KEYS: Mapping[Order, tuple[tuple[str, ...], _Values, bool]] = {
    Order.BEST: (("reward",), _column("reward"), False),
    Order.WORST: (("reward",), _column("reward"), True),
    Order.LONGEST: (_LENGTH, _sampled_tokens, False),
    Order.SHORTEST: (_LENGTH, _sampled_tokens, True),
    Order.LATEST_VERSION: (("version_min",), _column("version_min"), False),
    Order.EARLIEST_VERSION: (("version_min",), _column("version_min"), True),
    Order.MOST_ADVANTAGE: (_ANNOTATED, _advantages, False),
    Order.LEAST_ADVANTAGE: (_ANNOTATED, _advantages, True),
}
"""Columns read, the numbers, and whether the smallest comes first."""
