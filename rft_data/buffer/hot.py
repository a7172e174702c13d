"""The newest rows as they were committed, kept in memory so that a first-in-first-out lease reads no file."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SMALL_ROWS = 512
"""A chunk of fewer rows is small. Arrow needs 28 kB for a table of this width, however few its rows."""
_SMALL_CHUNKS = 64
"""This many small chunks at the end are joined."""


class _Chunk(NamedTuple):
    start: int
    rows: pa.Table
    nbytes: int


class HotTail:
    """Committed tables with consecutive row numbers, at most `max_bytes` of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: deque[_Chunk] = deque()
        self._bytes = 0
        self._small = 0  # number of small chunks at the end
        self._lock = threading.Lock()

    def add(self, start: int, rows: pa.Table) -> None:
        """Keep rows numbered start, start + 1, ...; a gap before them empties the tail."""
        with self._lock:
            if self._chunks and self._end() != start:
                self._empty()
            self._push(start, rows)
            if self._small >= _SMALL_CHUNKS:
                self._join()
            while self._bytes > self._max_bytes and len(self._chunks) > 1:
                self._bytes -= self._chunks.popleft().nbytes
                self._small = min(self._small, len(self._chunks))

    def clear(self) -> None:
        """Drop all rows."""
        with self._lock:
            self._empty()

    def _empty(self) -> None:
        self._chunks.clear()
        self._bytes = self._small = 0

    def _push(self, start: int, rows: pa.Table) -> None:
        self._chunks.append(_Chunk(start, rows, rows.nbytes))
        self._bytes += self._chunks[-1].nbytes
        self._small = self._small + 1 if rows.num_rows < _SMALL_ROWS else 0

    def _join(self) -> None:
        """Join the small chunks at the end."""
        small = [self._chunks.pop() for _ in range(self._small)][::-1]
        self._bytes -= sum(chunk.nbytes for chunk in small)
        self._small = 0
        rows = pa.concat_tables([chunk.rows for chunk in small])
        # not Arrow's own pool: see `group_commit.prepare`
        self._push(small[0].start, rows.combine_chunks(memory_pool=pa.system_memory_pool()))

    def _end(self) -> int:
        last = self._chunks[-1]
        return last.start + int(last.rows.num_rows)

    def split(self, seqs: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[pa.Table]]:
        """Of sorted, unique row numbers: those not in memory, and the rows of the others, in order."""
        with self._lock:
            chunks = list(self._chunks)
        if not chunks:
            return seqs, list[pa.Table]()
        starts = [chunk.start for chunk in chunks]
        place = int(np.searchsorted(seqs, starts[0]))
        cold, tables = seqs[:place], list[pa.Table]()
        while place < len(seqs):
            start, rows, _ = chunks[bisect_right(starts, int(seqs[place])) - 1]
            end = int(np.searchsorted(seqs, start + rows.num_rows))
            if end == place:  # a number past the newest row
                return np.concatenate([cold, seqs[place:]]), tables
            tables.append(_pick(rows, seqs[place:end] - start))
            place = end
        return cold, tables


def _pick(rows: pa.Table, at: npt.NDArray[np.int64]) -> pa.Table:
    if at[-1] - at[0] + 1 == len(at):
        return rows.slice(int(at[0]), len(at))
    return rows.take(pa.array(at))
