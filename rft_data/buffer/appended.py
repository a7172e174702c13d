"""The result of one append."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from rft_data.core.schema import EXPERIENCES


@dataclass(frozen=True, slots=True)
class Appended:
    """Row numbers and counts of one append, and the commit that stored it."""

    seqs: tuple[int | None, ...]
    """Row number of each input row, in order; None where it was quarantined."""
    stored: int
    """Rows that were new; a row that was stored already is not stored again."""
    quarantined: int
    commit: pa.Table
    """All rows of the commit that this append was part of, with `seq` and `digest`."""
    start: int
    """Index in `commit` of the first row of this append."""

    @property
    def rows(self) -> pa.Table:
        """The accepted rows of this append, in their order, without reading a file."""
        accepted = len(self.seqs) - self.quarantined
        return self.commit.slice(self.start, accepted).select(EXPERIENCES.names)


def in_places(seqs: Iterable[int | None], places: Iterable[int], total: int) -> tuple[int | None, ...]:
    """Row numbers at the places of their rows among `total` rows; None at every other place."""
    found: list[int | None] = [None] * total
    for place, seq in zip(places, seqs, strict=True):
        found[place] = seq
    return tuple(found)
