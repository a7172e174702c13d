"""Reads the rows of one fragment; if it does not decode, those rows that can be read one by one."""

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
        stream = attempt(lambda: self._scanner().to_reader())
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
        rows = attempt(lambda: self._scanner(offset=start, limit=end - start).to_table())
        if rows is not None and rows.num_rows == end - start:
            yield rows
        elif end - start == 1:
            bad.append(int(row_ids[start]))
        else:
            middle = (start + end) // 2
            yield from self._search(row_ids, start, middle, bad)
            yield from self._search(row_ids, middle, end, bad)

    def _scanner(self, offset: int | None = None, limit: int | None = None) -> lance.LanceScanner:
        return self._snapshot.dataset.scanner(
            columns=self._columns,
            with_row_id=True,
            fragments=[self._snapshot.fragments[self._number]],
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            offset=offset,
            limit=limit,
        )
