"""Group commit: many appends share one commit, and each returns once its own rows are stored.

Two threads: while one commit is written, the next batch is encoded, checked and digested. The waiting
bytes are bounded; an append that does not fit before its deadline fails with StalledError.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer.appended import Appended
from rft_data.buffer.validation import Refused, admit, encode
from rft_data.core.codec import aligned, is_aligned
from rft_data.core.digests import row_digests
from rft_data.core.errors import RftError, StalledError
from rft_data.core.rows import Experience
from rft_data.core.schema import EXPERIENCES

log = logging.getLogger(__name__)

MAX_COMMIT_ROWS = 512
MAX_WAITING_BYTES = 128 << 20
_SMALL_BYTES = 1 << 20
_ROW_BYTES, _TOKEN_BYTES = 2048, 24
"""Bytes of a row given as an object: its small fields; a token's id, mask and logprob in Python lists."""


@dataclass(eq=False)
class Pending:
    """One append that waits for its commit."""

    rows: pa.Table | tuple[Experience, ...]
    """As the caller sent them; a table conforms (see `validation.conform`)."""
    urgent: bool
    """Whether the caller waits for it; then it is committed as soon as possible."""
    future: Future[Appended] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    size: int = field(init=False)
    """Bytes it holds in memory; of objects an estimate."""
    brought: int = field(init=False)
    """Number of rows."""

    def __post_init__(self) -> None:
        self.brought = len(self.rows)
        if isinstance(self.rows, pa.Table):
            size = self.rows.get_total_buffer_size()  # fast, but counts the whole parent of a slice
            self.size = size if size < _SMALL_BYTES else self.rows.nbytes
        else:
            self.size = sum(map(_object_bytes, self.rows))


def _object_bytes(row: Experience) -> int:
    texts = len(row.completion_text) if isinstance(row.completion_text, str) else 0
    tokens = len(row.token_ids) if isinstance(row.token_ids, Sized) else 0
    return _ROW_BYTES + 2 * texts + _TOKEN_BYTES * tokens


@dataclass(frozen=True)
class Prepared:
    """Several appends, encoded, checked and digested, ready for one commit."""

    pending: list[Pending]
    table: pa.Table
    """The valid rows of all these appends, with `digest`."""
    places: npt.NDArray[np.int64]
    """Index of each valid row among all rows of these appends."""
    refused: list[Refused]


def prepare(pending: list[Pending]) -> Prepared:
    """Encode, check and digest the rows of several appends at once."""
    tables, numbers, refused, start = [], [], [], 0
    for as_table, same in groupby(pending, lambda item: isinstance(item.rows, pa.Table)):
        given = [item.rows for item in same]
        if as_table:
            tables += given
            kept: Sequence[int] = range(sum(map(len, given)))
            end = start + len(kept)
        else:
            objects = list(chain.from_iterable(given))
            table, kept, unfit = encode(objects)
            tables.append(table)
            refused += unfit
            end = start + len(objects)
        numbers.append(start + np.asarray(kept, np.int64))
        start = end
    # Arrow's own pool asks for huge pages, whose first use costs 20 us of CPU a row, measured
    table = pa.concat_tables(tables).combine_chunks(memory_pool=pa.system_memory_pool())
    parsed = not any(isinstance(item.rows, pa.Table) for item in pending)
    borrowed = len(pending) == 1 and not parsed  # the caller may change its memory afterwards
    if borrowed or not is_aligned(table):
        table = pa.Table.from_batches([aligned(batch) for batch in table.to_batches()], table.schema)
    good, places, invalid = admit(table, parsed=parsed)
    digests = pa.array(row_digests(good), pa.string())
    whole = good.append_column(EXPERIENCES.field("digest"), digests)
    return Prepared(pending, whole, np.concatenate(numbers)[places], refused + invalid)


class GroupCommit:
    """Collects appends, prepares them, and calls `commit` with one batch at a time, in order of arrival."""

    def __init__(self, commit: Callable[[Prepared], None], *, linger_s: float) -> None:
        """`commit` stores a batch and resolves the futures of its appends.

        `linger_s`: how long an append that is not urgent may wait for others to share its commit.
        """
        self._commit = commit
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting: deque[Pending] = deque()
        self._waiting_rows = 0
        self._waiting_urgent = 0
        self._waiting_bytes = 0
        self._unfinished = 0
        self._ready: queue.Queue[Prepared | None] = queue.Queue(maxsize=1)
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, pending: Pending, deadline_s: float) -> None:
        """Queue an append; blocks while too much is waiting.

        Raises: StalledError after `deadline_s`; then nothing of the append is stored.
        """
        size = pending.size
        with self._lock:
            self._start()
            free = self._room.wait_for(
                lambda: self._closed or not self._waiting or self._waiting_bytes + size <= MAX_WAITING_BYTES,
                deadline_s,
            )
            if self._closed:
                raise RftError("the buffer is closed; nothing of this append is stored.")
            if not free:
                raise StalledError(
                    f"{len(self._waiting)} appends with {self._waiting_rows} rows are waiting to be stored "
                    f"and this one did not fit within {deadline_s:g} s; nothing of it is stored. Send less "
                    "at a time, or wait longer (deadline_s): sending it again is safe."
                )
            self._waiting.append(pending)
            self._waiting_rows += pending.brought
            self._waiting_bytes += size
            self._waiting_urgent += pending.urgent
            # a needless wake-up costs a switch of threads
            if len(self._waiting) == 1 or self._due():
                self._work.notify()

    def close(self) -> None:
        """Store what was submitted, then stop; idempotent."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._room.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> None:
        if not self._threads and not self._closed:
            for act in (self._prepare_all, self._commit_all):
                thread = threading.Thread(target=act, name=f"buffer{act.__name__}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _due(self) -> bool:
        """Whether the next batch should be taken now."""
        if not self._waiting:
            return self._closed
        if self._waiting_rows >= MAX_COMMIT_ROWS or self._closed:
            return True
        if self._unfinished:
            return False
        return self._waiting_urgent > 0 or self._remaining_linger() <= 0

    def _remaining_linger(self) -> float:
        return self._waiting[0].arrived + self._linger_s - time.monotonic()

    def _next(self) -> list[Pending]:
        """The appends of the next batch; empty when all is done."""
        with self._lock:
            while not self._due():
                lingering = self._waiting and not self._unfinished
                self._work.wait(self._remaining_linger() if lingering else None)
            batch: list[Pending] = []
            rows = 0
            while self._waiting and (not batch or rows + self._waiting[0].brought <= MAX_COMMIT_ROWS):
                batch.append(self._waiting.popleft())
                rows += batch[-1].brought
                self._waiting_bytes -= batch[-1].size
                self._waiting_urgent -= batch[-1].urgent
            self._waiting_rows -= rows
            self._unfinished += bool(batch)
            self._room.notify_all()
            return batch

    def _prepare_all(self) -> None:
        while batch := self._next():
            try:
                self._ready.put(prepare(batch))
            except BaseException:  # noqa: BLE001 - passed to the callers of these appends
                self._prepare_each(batch)
        self._ready.put(None)

    def _prepare_each(self, batch: list[Pending]) -> None:
        """Prepare each append by itself, because one of them failed."""
        with self._lock:
            self._unfinished += len(batch) - 1
        for item in batch:
            try:
                self._ready.put(prepare([item]))
            except BaseException as err:  # noqa: BLE001 - passed to the callers of these appends
                self._fail([item], err)

    def _commit_all(self) -> None:
        while (prepared := self._ready.get()) is not None:
            try:
                self._commit(prepared)
            except BaseException as err:  # noqa: BLE001 - passed to the callers of these appends
                self._fail(prepared.pending, err)
            else:
                self._finish()

    def _fail(self, batch: list[Pending], err: BaseException) -> None:
        waiting = [item for item in batch if not item.future.done()]
        for item in waiting:
            item.future.set_exception(err)
        if not waiting:  # every row is stored and acknowledged; the compaction afterwards failed
            log.error("compaction of the buffer failed: %s", err)
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1
            self._work.notify()
