"""Rows of commits that no version of a table has: the manifest of the commit is gone or damaged.

A data file without a transaction was never committed: its write was killed before. A transaction whose
version is missing was committed if the hint file or a damaged manifest says that this version existed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.folder import TableFolder
from rft_data.buffer.care.fragment_rows import FragmentRows
from rft_data.buffer.care.salvage import by_time, lost_commit_files, read_files
from rft_data.buffer.unfinished import unfinished


class LostCommits:
    """The data files of commits that are not in a table's newest version."""

    def __init__(self, folder: TableFolder, *, numbers_named: bool = False) -> None:
        """`numbers_named`: other tables name rows of experiences that are not stored."""
        self._folder = folder
        self.certain = bool(
            folder.bad_heads or folder.missing_versions or numbers_named or unfinished(folder.root)
        )
        """Whether a version existed that cannot be read now. Without a hint file it is only possible."""
        self.files: list[Path] = []
        """Data files with these rows."""
        if folder.head is not None and (self.certain or folder.hinted is None):
            self.files = lost_commit_files(folder)
        if folder.head is not None and self.certain and folder.name == "experiences":
            # newest first: of several writes under one number the last one succeeded
            orphans = by_time(folder.orphans())[::-1]
            self.files += [path for path in orphans if path not in self.files]

    def rows(self) -> pa.Table:
        """The sound rows in these files that are not stored."""
        rows = read_files(self._folder.name, self.files)
        if rows.num_rows == 0 or self._folder.head is None:
            return rows
        keys = rows.column_names
        if self._folder.name == "experiences":
            rows = rows.filter(pa.array(np.asarray(rows.column("seq")) >= self._folder.next_row_id))
            keys = ["experience_id"]
        known = self._known(keys)
        new = [_values(row) not in known for row in rows.select(keys).to_pylist()]
        return rows.filter(pa.array(new, pa.bool_()))

    def _known(self, columns: list[str]) -> set[tuple[str, ...]]:
        head = self._folder.head
        known: set[tuple[str, ...]] = set()
        if head is None:
            return known
        for number in head.fragments:
            for batch in FragmentRows(head, number, columns):
                known |= {_values(row) for row in batch.select(columns).to_pylist()}
        return known


def _values(row: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(value) for value in row.values())
