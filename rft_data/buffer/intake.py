"""Takes appends: queues their rows for a commit, and waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import pyarrow as pa

from rft_data.buffer.appended import Appended
from rft_data.buffer.experiences import Experiences
from rft_data.buffer.group_commit import GroupCommit, Pending
from rft_data.buffer.validation import conform
from rft_data.core.errors import StalledError
from rft_data.core.rows import Experience
from rft_data.core.schema import EXPERIENCES

LINGER_S = 0.005
"""How long an append that is not urgent may wait for others to share its commit."""


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
            if future.done():
                raise  # what the commit said: a StalledError is a TimeoutError too
            raise StalledError(
                f"an append of {len(rows)} rows was not acknowledged within {deadline_s:g} s; it may be "
                "stored or not. Send it again: ids are deterministic, nothing is stored twice."
            ) from err

    def submit(
        self, rows: Sequence[Experience] | pa.Table, deadline_s: float, *, urgent: bool
    ) -> Future[Appended]:
        """See `Buffer.submit`; an `urgent` append is committed as soon as possible."""
        pending = Pending(conform(rows) if isinstance(rows, pa.Table) else tuple(rows), urgent)
        if pending.brought:
            self._writer.submit(pending, deadline_s)
        else:
            pending.future.set_result(Appended((), 0, 0, EXPERIENCES.empty_table(), 0))
        return pending.future
