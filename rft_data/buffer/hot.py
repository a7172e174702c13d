"""The newest rows as they were committed, kept in memory so that a first-in-first-out lease reads no file."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class HotTail:
    """Committed tables with consecutive row numbers, at most `max_bytes` of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: deque[tuple[int, pa.Table]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, start: int, rows: pa.Table) -> None:
        """Keep rows numbered start, start + 1, ...; a gap before them empties the tail."""
        with self._lock:
            if self._chunks and self._end() != start:
                self._chunks.clear()
                self._bytes = 0
            self._chunks.append((start, rows))
            self._bytes += rows.nbytes
            while self._bytes > self._max_bytes and len(self._chunks) > 1:
                self._bytes -= self._chunks.popleft()[1].nbytes

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._chunks.clear()
            self._bytes = 0

    def _end(self) -> int:
        start, rows = self._chunks[-1]
        return start + int(rows.num_rows)

    def split(self, seqs: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[pa.Table]]:
        """Of sorted, unique row numbers: those not held here, and the rows of the others, in order."""
        with self._lock:
            chunks = list(self._chunks)
        if not chunks:
            return seqs, list[pa.Table]()
        starts = [start for start, _ in chunks]
        place = int(np.searchsorted(seqs, starts[0]))
        cold, tables = seqs[:place], list[pa.Table]()
        while place < len(seqs):
            start, rows = chunks[bisect_right(starts, int(seqs[place])) - 1]
            end = int(np.searchsorted(seqs, start + rows.num_rows))
            if end == place:  # a number past the newest row: nobody holds it
                return np.concatenate([cold, seqs[place:]]), tables
            tables.append(_pick(rows, seqs[place:end] - start))
            place = end
        return cold, tables


def _pick(rows: pa.Table, at: npt.NDArray[np.int64]) -> pa.Table:
    if at[-1] - at[0] + 1 == len(at):
        return rows.slice(int(at[0]), len(at))
    return rows.take(pa.array(at))
