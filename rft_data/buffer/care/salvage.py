"""Finds rows that damage removed from the newest version but that are still on the disk.

Three places: older versions (compaction copies rows), data files of commits whose manifest is lost,
and, when no version opens, all data files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.contents import bad_rows
from rft_data.buffer.care.folder import Snapshot, TableFolder, attempt, open_version
from rft_data.buffer.care.fragment_rows import FragmentRows
from rft_data.buffer.care.lance_bytes import appended_files
from rft_data.buffer.care.ranges import Numbers
from rft_data.buffer.care.trial import lethal
from rft_data.core.decoding_trial import Part
from rft_data.core.schema import TABLES


def from_older_versions(folder: TableFolder, wanted: Numbers) -> pa.Table | None:
    """Right rows (with `_rowid`) of `wanted` row ids, from other data files than the newest version's."""
    if folder.head is None:
        return None
    seen = {file.path for fragment in folder.fragments.values() for file in fragment.metadata.files}
    missing, parts = set(wanted.tolist()), []
    for manifest in folder.older:
        if not missing:
            break
        snapshot = open_version(folder.path, manifest.version)
        for number, fragment in snapshot.fragments.items() if snapshot is not None else ():
            files = {file.path for file in fragment.metadata.files}
            if snapshot is None or files <= seen or not missing:
                continue
            seen |= files
            for rows in _sound(snapshot, folder.name, number, missing):
                missing -= set(rows.column("_rowid").to_pylist())
                parts.append(rows)
    return pa.concat_tables(parts) if parts else None


def _sound(snapshot: Snapshot, name: str, number: int, wanted: set[int]) -> Iterable[pa.Table]:
    if not wanted.intersection(snapshot.row_ids(number).tolist()):
        return
    for batch in FragmentRows(snapshot, number, snapshot.names):
        row_ids = np.asarray(batch.column("_rowid")).astype(np.int64)
        bad = bad_rows(name, batch, row_ids, deep=True)
        keep = [int(row_id) in wanted and int(row_id) not in bad for row_id in row_ids]
        if any(keep):
            yield batch.filter(pa.array(keep))


def lost_commit_files(folder: TableFolder) -> list[Path]:
    """Data files that commits newer than the newest readable version appended, oldest first."""
    if folder.head is None:
        return []
    named = {file.path for fragment in folder.fragments.values() for file in fragment.metadata.files}
    commits: dict[int, Path] = {}
    for path in by_time((folder.path / "_transactions").glob("*-*.txn")):
        built_on = path.name.split("-")[0]
        if built_on.isdecimal() and int(built_on) >= folder.head.version:
            commits[int(built_on)] = path  # the last of several tries is the one that succeeded
    files = [
        folder.path / "data" / name
        for _, transaction in sorted(commits.items())
        for name in appended_files(transaction) or ()
        if name not in named
    ]
    return [path for path in files if path.is_file()]


def by_time(paths: Iterable[Path]) -> list[Path]:
    """Files in the order they were written."""
    return sorted(paths, key=_written)


def _written(path: Path) -> int:
    return os.stat(path).st_mtime_ns


def read_files(name: str, paths: Sequence[Path]) -> pa.Table:
    """Sound rows of data files, read without a manifest, in the files' order; each row once.

    Experiences come sorted by their row number.
    """
    schema = TABLES[name][0]
    parts = [schema.empty_table()]
    deadly = {part.path for part in lethal([Part(str(path)) for path in paths])}
    for path in paths:
        if str(path) in deadly:
            continue
        rows = _read_file(path, schema)
        if rows is not None and rows.num_rows:
            numbers = np.asarray(rows.column("seq")) if name == "experiences" else np.arange(rows.num_rows)
            bad = bad_rows(name, rows, numbers, deep=True)
            parts.append(rows.filter(pa.array([int(number) not in bad for number in numbers])))
    rows = pa.concat_tables(parts).combine_chunks()
    if name == "experiences":
        rows = _first_of_each(rows.sort_by("seq"), ["seq"])
        return _first_of_each(rows, ["experience_id"])
    return _first_of_each(rows, schema.names)


def _read_file(path: Path, schema: pa.Schema) -> pa.Table | None:
    from lance.file import LanceFileReader

    def read() -> pa.Table:
        return LanceFileReader(str(path)).read_all().to_table().select(schema.names).cast(schema)

    return attempt(read) if path.stat().st_size else None


def _first_of_each(rows: pa.Table, names: list[str]) -> pa.Table:
    """The first row of each set with equal values in `names`."""
    seen: set[str] = set()
    keep = []
    for row in rows.select(names).to_pylist():
        text = repr(row)
        keep.append(text not in seen)
        seen.add(text)
    return rows.filter(pa.array(keep, pa.bool_()))
