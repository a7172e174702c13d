"""Finds the rows of a fragment that cannot be decoded: column by column, by halving.

It takes rows by row id: a try costs 0.07 ms, where a scan of all columns for one row costs 7 ms (measured).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.folder import Snapshot, attempt
from rft_data.buffer.care.ranges import Numbers

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 4096
_TELL_EVERY_S = 5.0


@dataclass(frozen=True)
class Rows:
    """Some rows of one version of a table, by row id; equal to the same rows of the same files."""

    files: tuple[tuple[str, int, int], ...]
    """Path, size and time of change of the data files that hold them."""
    row_ids: bytes
    """Sorted int64."""
    snapshot: Snapshot = field(compare=False)


@lru_cache(maxsize=64)  # a repair asks several times
def undecodable(rows: Rows, columns: tuple[str, ...]) -> Numbers:
    """Row ids of the rows that cannot be decoded alone in one of the columns."""
    search = _Search(rows)
    damaged: list[tuple[float, str]] = []
    for column in columns:
        started = time.monotonic()
        if not search.sound(column):
            damaged.append((time.monotonic() - started, column))
    for _, column in sorted(damaged):  # a try may take a second; rows that a quick column lacks need no more
        search.halve(column)
    return np.setdiff1d(np.frombuffer(rows.row_ids, np.int64), search.left, assume_unique=True)


def column_at(snapshot: Snapshot, column: str, row_ids: Numbers) -> pa.ChunkedArray | None:
    """A column's values in these rows (sorted ids); None if one of them cannot be decoded."""
    values = attempt(lambda: snapshot.dataset._take_rows(row_ids.tolist(), [column]).column(0))
    return None if values is None or len(values) != len(row_ids) else values


class _Search:
    """Rows of one fragment, and those of them that decode in every column looked at."""

    def __init__(self, rows: Rows) -> None:
        self._snapshot = rows.snapshot
        self._name = rows.files[0][0]
        self._told = time.monotonic()
        self.left = np.frombuffer(rows.row_ids, np.int64)
        self._rows = len(self.left)

    def sound(self, column: str) -> bool:
        """Whether a column can be read as a whole."""
        return all(column_at(self._snapshot, column, part) is not None for part in self._parts())

    def halve(self, column: str) -> None:
        """Take the rows out that cannot be read alone: halve what fails until it is read or is one row."""
        bad: list[int] = []
        waiting = self._parts()[::-1]
        while waiting:
            part = waiting.pop()
            if column_at(self._snapshot, column, part) is not None:
                continue
            if len(part) == 1:
                bad.append(int(part[0]))
                self._tell(column, bad)
            else:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
        self.left = np.setdiff1d(self.left, np.array(bad, np.int64), assume_unique=True)

    def _parts(self) -> list[Numbers]:
        return [self.left[at : at + _ROWS_AT_ONCE] for at in range(0, len(self.left), _ROWS_AT_ONCE)]

    def _tell(self, column: str, bad: list[int]) -> None:
        if time.monotonic() - self._told > _TELL_EVERY_S:
            self._told = time.monotonic()
            lost = self._rows - len(self.left) + len(bad)
            text = "%s: looking for rows that decode: at row %d, column '%s'; so far %d of %d rows do not"
            log.info(text, self._name, bad[-1], column, lost, self._rows)
