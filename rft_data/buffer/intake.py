"""The way of an append from its caller to a commit and back: encode, queue, wait."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

import pyarrow as pa

from rft_data.buffer.door import Refused, conform, encode
from rft_data.buffer.experiences import Experiences, Stored
from rft_data.buffer.group_commit import GroupCommit, Pending
from rft_data.errors import StalledError
from rft_data.rows import Experience
from rft_data.schema import EXPERIENCES

LINGER_S = 0.005
"""How long an append that nobody waits for may wait for company."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of the rows of one append."""

    seqs: tuple[int | None, ...]
    """Row number of each input row, in order; None where it was quarantined."""
    stored: int
    """Rows new in the table (a row that was already there is not stored again)."""
    quarantined: int
    commit: Stored

    @property
    def rows(self) -> pa.Table:
        """EXPERIENCES rows that were let in, in the order brought: what `take` would give, without a read."""
        return self.commit.rows


class Intake:
    """Appends of many threads to one table, in shared commits."""

    def __init__(self, experiences: Experiences) -> None:
        self._experiences = experiences
        self._writer = GroupCommit(experiences.commit, linger_s=LINGER_S)

    def close(self) -> None:
        """Store what was submitted; idempotent."""
        self._writer.close()

    def append(self, rows: Sequence[Experience] | pa.Table, deadline_s: float) -> Appended:
        """See `Buffer.append`."""
        future = self.submit(rows, deadline_s, urgent=True)
        try:
            return future.result(deadline_s)
        except FutureTimeoutError as err:
            raise StalledError(
                f"an append of {len(rows)} rows was not acknowledged within {deadline_s:g} s; it may be "
                "stored or not. Send it again: ids are deterministic, nothing is stored twice."
            ) from err

    def submit(
        self, rows: Sequence[Experience] | pa.Table, deadline_s: float, *, urgent: bool
    ) -> Future[Appended]:
        """See `Buffer.submit`; `urgent` appends do not linger."""
        done: Future[Appended] = Future()
        if isinstance(rows, pa.Table):
            table, parsed = conform(rows), False
            places: Sequence[int] = range(len(rows))
            refused: list[Refused] = []
        else:
            table, places, refused = encode(rows)
            parsed = True
        pending = Pending(table, parsed=parsed, urgent=urgent)
        self._experiences.quarantine.set_aside(refused)

        def resolve(inner: Future[Stored]) -> None:
            error = inner.exception()
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(_appended(inner.result(), places, len(rows), len(refused)))

        if pending.rows == 0:
            pending.future.set_result(Stored(EXPERIENCES.empty_table(), 0, (), 0, 0))
        pending.future.add_done_callback(resolve)
        if pending.rows:
            self._writer.submit(pending, deadline_s)
        return done


def _appended(stored: Stored, places: Sequence[int], brought: int, refused: int) -> Appended:
    """The result in terms of the rows brought, of which `refused` never made it into a table."""
    if len(places) == brought:
        seqs = stored.seqs
    else:
        by_place: list[int | None] = [None] * brought
        for place, seq in zip(places, stored.seqs, strict=True):
            by_place[place] = seq
        seqs = tuple(by_place)
    return Appended(seqs, stored.stored, stored.quarantined + refused, stored)
