"""Reads the rows of fragments; of one that does not decode, those rows that can be read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.folder import Snapshot, attempt
from rft_data.buffer.care.ranges import Numbers, to_ranges
from rft_data.buffer.care.undecodable import Rows, undecodable

if TYPE_CHECKING:
    import lance

_BATCH_ROWS = 512


class FragmentDamageError(Exception):
    """A fragment does not decode."""


def rows_at_once(snapshot: Snapshot, numbers: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Batches (with `_rowid`) of several fragments in one scan, which costs less than one for each.

    Raises: FragmentDamageError where one does not decode.
    """
    stream = attempt(lambda: _scanner(snapshot, numbers, columns).to_reader())
    while (batch := None if stream is None else attempt(lambda: next(stream, False))) is not False:
        if batch is None:
            raise FragmentDamageError
        yield pa.Table.from_batches([batch])


class FragmentRows:
    """Iterates over batches (with `_rowid`) once; afterwards knows the unreadable rows."""

    def __init__(self, snapshot: Snapshot, number: int, columns: Sequence[str]) -> None:
        """`columns` of fragment `number` of one version."""
        self._snapshot = snapshot
        self._number = number
        self._columns = list(columns)
        self.decodes = True
        """Whether the fragment was read as a whole."""
        self.unreadable: Numbers = np.empty(0, np.int64)
        """Row ids that could not be read in any way."""

    def __iter__(self) -> Iterator[pa.Table]:
        stream = attempt(lambda: _scanner(self._snapshot, [self._number], self._columns).to_reader())
        read = 0
        while stream is not None:
            batch: pa.RecordBatch | Literal[False] | None = attempt(lambda: next(stream, False))
            if batch is False:
                return
            if batch is None:
                break
            yield pa.Table.from_batches([batch])
            read += batch.num_rows
        self.decodes = False
        row_ids = self._snapshot.row_ids(self._number)
        sound = np.isin(row_ids, self._undecodable(row_ids[read:]), invert=True)
        bad: list[int] = row_ids[~sound].tolist()
        for first, last in to_ranges(np.flatnonzero(sound[read:]) + read):
            for start in range(first, last + 1, _BATCH_ROWS):
                yield from self._search(row_ids, start, min(start + _BATCH_ROWS, last + 1), bad)
        self.unreadable = np.sort(np.array(bad, np.int64))

    def _undecodable(self, row_ids: Numbers) -> Numbers:
        folder = Path(self._snapshot.dataset.uri) / "data"
        files = [folder / str(file.path) for file in self._snapshot.fragments[self._number].metadata.files]
        if not all(path.is_file() for path in files):
            return row_ids
        facts = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
        rows = Rows(facts, np.sort(row_ids).tobytes(), self._snapshot)
        return undecodable(rows, tuple(self._columns))

    def _search(self, row_ids: Numbers, start: int, end: int, bad: list[int]) -> Iterator[pa.Table]:
        """Halve rows start .. end - 1 until a part can be read or is one row."""
        if start >= end:
            return
        number, count = [self._number], end - start
        rows = attempt(lambda: _scanner(self._snapshot, number, self._columns, start, count).to_table())
        if rows is not None and rows.num_rows == count:
            yield rows
        elif count == 1:
            bad.append(int(row_ids[start]))
        else:
            middle = (start + end) // 2
            yield from self._search(row_ids, start, middle, bad)
            yield from self._search(row_ids, middle, end, bad)


def _scanner(
    snapshot: Snapshot,
    numbers: Sequence[int],
    columns: Sequence[str],
    offset: int | None = None,
    limit: int | None = None,
) -> lance.LanceScanner:
    return snapshot.dataset.scanner(
        columns=list(columns),
        with_row_id=True,
        fragments=[snapshot.fragments[number] for number in numbers],
        batch_size=_BATCH_ROWS,
        batch_readahead=2,
        fragment_readahead=2,
        offset=offset,
        limit=limit,
    )
