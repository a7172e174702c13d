"""Examines one table: its files, then its rows; and reports findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.contents import Contents, RowKind, columns_to_read, look
from rft_data.buffer.care.damage import Finding
from rft_data.buffer.care.folder import FileFault, Snapshot, TableFolder, fits
from rft_data.buffer.care.fragment_rows import FragmentRows, rows_at_once
from rft_data.buffer.care.lost_commits import LostCommits
from rft_data.buffer.care.order import misplaced
from rft_data.buffer.care.ranges import Numbers, size, to_ranges
from rft_data.buffer.care.salvage import lost_commit_files, read_files
from rft_data.buffer.care.trial import lethal
from rft_data.buffer.manifests import manifest_path
from rft_data.core.decoding_trial import Part
from rft_data.core.schema import TABLES

REPAIR = "rft buffer repair"


@dataclass(frozen=True, slots=True)
class Examined:
    """A table and what is wrong with it."""

    folder: TableFolder
    deep: bool
    faults: dict[int, FileFault]
    """Fragments with a missing, empty or cut file, or one that kills a process that decodes it."""
    contents: Contents

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Sound rows with their `_rowid`, batch by batch, in the order written."""
        bad = pa.array(sorted(self.contents.bad), pa.uint64())
        head = self.folder.head
        if head is None:
            return
        numbers = [number for number in self.folder.fragments if number not in self.faults]
        decodes = self.deep and not self.contents.faults  # all columns have been read before
        each = (batch for number in numbers for batch in FragmentRows(head, number, columns))
        for batch in rows_at_once(head, numbers, columns) if decodes else each:
            keep = np.isin(np.asarray(batch.column("_rowid")), np.asarray(bad), invert=True)
            yield batch if keep.all() else batch.filter(pa.array(keep))

    def lost_rows(self) -> dict[int, Numbers]:
        """Row ids that cannot be read, by fragment."""
        head = self.folder.head
        lost = {} if head is None else {number: head.row_ids(number) for number in self.faults}
        return lost | self.contents.unreadable


def examine_each(folders: Sequence[TableFolder], *, deep: bool, tried: bool = False) -> list[Examined]:
    """Examine tables; `tried`: their files are known to decode without killing the process.

    A table whose newest manifest seems damaged is seen as the version before has it.
    """
    return [_doubt(table) for table in as_they_are(folders, deep=deep, tried=tried)]


def as_they_are(folders: Sequence[TableFolder], *, deep: bool, tried: bool = False) -> list[Examined]:
    """Examine tables, assuming that each newest manifest is correct."""
    faults = [{fault.fragment: fault for fault in folder.file_faults()} for folder in folders]
    parts = {
        Part(str(folder.path), folder.head.version, number, tuple(columns_to_read(folder, deep=deep))): place
        for place, folder in enumerate(folders)
        if folder.head is not None and not tried
        for number in folder.fragments
        if number not in faults[place]
    }
    for part in lethal(list(parts)):
        place, number = parts[part], part.fragment
        faults[place][number] = FileFault(number, "unreadable_rows", folders[place].data_path(number))
    return [
        Examined(folder, deep, broken, look(folder, set(broken), deep=deep))
        for folder, broken in zip(folders, faults, strict=True)
    ]


def _doubt(table: Examined) -> Examined:
    """The table by its previous version, if that reads what the newest version cannot.

    Then not the files are damaged but the newest manifest: it has no checksum either, and a bit flipped
    in it (a path, a column's number, row ids) makes sound rows look lost.
    """
    folder, doubtful = table.folder, _doubtful(table)
    if not doubtful or folder.head is None:
        return table
    before = TableFolder(folder.root, folder.name, folder.head.version)
    if before.head is None:
        return table
    (previous,) = as_they_are([before], deep=table.deep, tried=False)
    if previous.faults or previous.contents.faults or previous.contents.bad:
        return table
    if doubtful.intersection(before.fragments):
        return previous
    if folder.name not in TABLES or any(fault.kind == "unreadable_rows" for fault in table.faults.values()):
        return table
    rows = read_files(folder.name, lost_commit_files(before))
    sound = rows.num_rows == sum(folder.fragments[number].physical_rows for number in doubtful)
    if (
        sound and folder.name == "experiences"
    ):  # wrong row numbers from the time of writing do not come from the manifest
        sound = rows.column("seq")[0].as_py() == before.next_row_id
    return previous if sound else table


def _doubtful(table: Examined) -> set[int]:
    """Fragments whose fault may come from the manifest; an empty file does not."""
    faults = (table.faults | table.contents.faults).items()
    numbers = {number for number, fault in faults if fault.kind != "empty_file"}
    wrong = [row_id for row_id, (kind, _) in table.contents.bad.items() if kind in ("seq", "digest", "value")]
    return numbers | table.folder.fragments_with(wrong)


def findings(table: Examined) -> Iterator[Finding]:
    """The findings about one table."""
    folder = table.folder
    if folder.head is None:
        yield _unopenable(folder)
        return
    yield from _manifests(folder, folder.head)
    yield from _schema(folder, folder.head)
    if not folder.bad_heads:
        yield from _missing_manifest(folder, folder.head)
    lost = table.lost_rows()
    for number, fault in (table.faults | table.contents.faults).items():
        yield _file(folder, fault, lost[number])
    yield from _rows(table)
    yield from _order(folder, folder.head)
    yield from _notes(folder)


def _unopenable(folder: TableFolder) -> Finding:
    rows = "every row of the table" if folder.manifests else "nothing, if it was being created"
    return Finding(
        "no_table",
        "damage",
        folder.name,
        folder.place(folder.path),
        f"{rows}: {len(folder.manifests)} manifests, none can be read",
        f"{REPAIR} moves the folder aside and starts the table anew with the rows its data files hold",
    )


def _manifests(folder: TableFolder, head: Snapshot) -> Iterator[Finding]:
    for manifest in folder.bad_heads:
        yield Finding(
            "manifest",
            "damage",
            folder.name,
            folder.place(manifest.path),
            f"version {manifest.version} of the table; the newest that opens is {head.version}",
            f"{REPAIR} moves the manifest aside and falls back to version {head.version}",
        )
    for path in folder.damaged_old_manifests():
        yield Finding(
            "old_manifest",
            "note",
            folder.name,
            folder.place(path),
            "",
            "nothing: newer versions are sound, and old ones are removed in time",
        )


def _missing_manifest(folder: TableFolder, head: Snapshot) -> Iterator[Finding]:
    commits = LostCommits(folder)
    rows = commits.rows() if commits.files and folder.name in TABLES else None
    if not folder.missing_versions and not (rows is not None and rows.num_rows):
        return
    found = 0 if rows is None else rows.num_rows
    seqs = rows.column("seq").to_pylist() if rows is not None and folder.name == "experiences" else ()
    yield Finding(
        "missing_manifest",
        "damage",
        folder.name,
        folder.place(manifest_path(folder.path, head.version + max(1, folder.missing_versions))),
        f"the commits after version {head.version}; {found} rows of them are in data files",
        f"{REPAIR} stores these rows again",
        to_ranges(seqs),
    )


def _schema(folder: TableFolder, head: Snapshot) -> Iterator[Finding]:
    if folder.name not in TABLES:
        return
    if not fits(head, folder.name):
        wanted = {f.name: (f.type, f.nullable) for f in TABLES[folder.name][0]}
        stored = {f.name: (f.type, f.nullable) for f in head.dataset.schema}
        names = wanted.keys() | stored.keys()
        wrong = sorted(name for name in names if wanted.get(name) != stored.get(name))
        yield Finding(
            "schema",
            "fatal",
            folder.name,
            folder.place(folder.path),
            f"columns {', '.join(wrong)} are missing, unknown or of another type",
            "open it with the version of rft-data that wrote it",
        )


def _file(folder: TableFolder, fault: FileFault, lost: Numbers) -> Finding:
    rows = to_ranges(lost)
    if fault.deletions:
        what = f"which rows of fragment {fault.fragment} were removed"
    elif len(lost):
        what = f"{len(lost)} rows of fragment {fault.fragment}"
    else:
        what = ""
    return Finding(
        fault.kind,
        "damage",
        folder.name,
        folder.place(fault.path),
        what,
        f"{REPAIR} takes the rows from older versions where they hold them, and moves the file aside",
        rows,
    )


def _rows(table: Examined) -> Iterator[Finding]:
    """Findings about stored but bad rows, by kind."""
    kinds: defaultdict[RowKind, dict[int, str]] = defaultdict(dict)
    for row_id, (kind, why) in table.contents.bad.items():
        kinds[kind][row_id] = why
    for kind, whys in kinds.items():
        rows = to_ranges(whys)
        first = rows[0][0]
        yield Finding(
            kind,
            "damage",
            table.folder.name,
            f"row {first}",
            f"{size(rows)} rows; row {first}: {whys[first]}",
            f"{REPAIR} copies the rows to `quarantine` and takes them out",
            rows,
        )


def _order(folder: TableFolder, head: Snapshot) -> Iterator[Finding]:
    if numbers := misplaced(head):
        yield Finding(
            "order",
            "damage",
            folder.name,
            f"fragments {numbers[0]} to {numbers[-1]}",
            "no row, but which of two rows is the newer one",
            f"{REPAIR} writes these fragments again in the order of their row ids",
        )


def _notes(folder: TableFolder) -> Iterator[Finding]:
    remedy = "nothing: `rft buffer compact` removes it when it is old enough"
    for path in folder.leftovers():
        yield Finding("leftover", "note", folder.name, folder.place(path), "", remedy)
    for path in folder.orphans():
        yield Finding("orphan_file", "note", folder.name, folder.place(path), "", remedy)
