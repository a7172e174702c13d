"""Stores rows of several groups in one append; a small append costs the hub nearly as much as a large one.

Complete rows wait a short time for those of other groups, and not at all when no other group is being played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rft_data.core.protocols import BufferClient
from rft_data.core.rows import Experience

WAIT_S = 0.5
"""Longest time, in seconds, that the rows of a complete group wait for those of others."""
MAX_TOKENS = 1 << 19
"""Tokens of the rows that wait together (about 10 MB); one group may have more."""
_APPENDS = 8
"""Appends of one explorer at a time; the buffer commits several of them together."""

Waiting = list[tuple[Sequence[Experience], "asyncio.Future[list[int]]"]]


class SharedAppends:
    """Appends the rows of one explorer's groups; all callers are in one event loop."""

    def __init__(self, buffer: BufferClient) -> None:
        self._buffer = buffer
        self._threads = ThreadPoolExecutor(_APPENDS, "explorer-append")
        self._playing = 0
        self._waiting: Waiting = []
        self._tokens = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Count a group that is being played: others wait for its rows."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1

    async def append(self, rows: Sequence[Experience]) -> list[int]:
        """Store a group's rows; returns the row numbers of those that validation accepted.

        A caller that is cancelled has its rows stored nevertheless.
        Raises: what the buffer raises, for every group of the append.
        """
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[list[int]] = loop.create_future()
        if rows:
            self._waiting.append((rows, stored))
            self._tokens += sum(len(row.token_ids) for row in rows if row.token_ids is not None)
        else:
            stored.set_result([])
        if self._playing == 0 or self._tokens >= MAX_TOKENS:
            self._send()
        elif self._waiting and self._timer is None:
            self._timer = loop.call_later(WAIT_S, self._send)
        return await stored

    async def append_now(self, rows: Sequence[Experience]) -> list[int]:
        """Store rows in an append of their own, in a thread; returns and raises as `append`."""
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, self._buffer.append, rows)
        return [seq for seq in done.seqs if seq is not None]

    def close(self) -> None:
        """Start nothing any more; idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self) -> None:
        """Start to append what waits."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._timer, self._tokens = self._waiting, [], None, 0
        if waiting:
            task = asyncio.get_running_loop().create_task(self._store(waiting))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _store(self, waiting: Waiting) -> None:
        rows = [row for mine, _ in waiting for row in mine]
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._threads, self._buffer.append, rows)
        except Exception as err:  # noqa: BLE001 - passed to the callers
            for _, stored in waiting:
                if not stored.done():
                    stored.set_exception(err)
            return
        first = 0
        for mine, stored in waiting:
            seqs = done.seqs[first : first + len(mine)]
            first += len(mine)
            if not stored.done():
                stored.set_result([seq for seq in seqs if seq is not None])
