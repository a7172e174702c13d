"""What became of the rows of one append."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from rft_data.core.schema import EXPERIENCES


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append."""

    seqs: tuple[int | None, ...]
    """Row number of each input row, in order; None where it was quarantined."""
    stored: int
    """Rows new in the table (a row that was already there is not stored again)."""
    quarantined: int
    commit: pa.Table
    """All rows of the commit it was part of, with `seq` and `digest`."""
    start: int
    """Where its own rows start in there."""

    @property
    def rows(self) -> pa.Table:
        """EXPERIENCES rows that were let in, in the order brought, as they were sent: no file is read."""
        let_in = len(self.seqs) - self.quarantined
        return self.commit.slice(self.start, let_in).select(EXPERIENCES.names)


def in_places(seqs: Iterable[int | None], places: Iterable[int], brought: int) -> tuple[int | None, ...]:
    """Row numbers put at the places of their rows among all `brought`; None at every other place."""
    found: list[int | None] = [None] * brought
    for place, seq in zip(places, seqs, strict=True):
        found[place] = seq
    return tuple(found)
