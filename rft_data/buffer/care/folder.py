"""The files of one table on disk: the newest version that opens, its files, and all other files.

Read-only, through pylance and the file system, so that it also works where LanceDB cannot open the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import numpy as np

from rft_data.buffer.care.lance_bytes import is_whole, next_row_id
from rft_data.buffer.care.ranges import Numbers
from rft_data.buffer.manifests import hinted_version, manifest_path, manifest_version, manifests
from rft_data.core.schema import TABLES

if TYPE_CHECKING:
    import lance

T = TypeVar("T")

_CACHE_BYTES = 32 << 20

FileKind: TypeAlias = Literal["missing_file", "empty_file", "cut_file", "unreadable_rows"]
"""Kinds of findings about one file; `damage.KINDS` has the meaning of each."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version's file."""

    version: int
    path: Path


@dataclass(frozen=True, slots=True)
class FileFault:
    """A fragment that cannot be read because of a damaged file."""

    fragment: int
    kind: FileKind
    path: Path
    deletions: bool = False
    """Whether the file is the list of the fragment's deleted rows, not its data."""


class Snapshot:
    """One version of a table that opens."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self.dataset = dataset
        self.version = int(dataset.version)
        self.names: list[str] = dataset.schema.names
        self.fragments: dict[int, lance.LanceFragment] = {f.fragment_id: f for f in dataset.get_fragments()}
        """Fragments by id, in the order of their rows."""

    def row_ids(self, number: int) -> Numbers:
        """Row ids of a fragment's rows, from the manifest alone; empty when its deletion file is missing."""
        fragments = [self.fragments[number]]
        table = attempt(
            lambda: self.dataset.scanner(columns=[], with_row_id=True, fragments=fragments).to_table()
        )
        return np.empty(0, np.int64) if table is None else np.asarray(table.column("_rowid")).astype(np.int64)


class TableFolder:
    """One `<name>.lance` folder."""

    def __init__(self, root: Path, name: str, before: int | None = None) -> None:
        """Find the newest version that opens (among those older than `before`)."""
        self.root = root
        self.name = name
        self.path = root / f"{name}.lance"
        self.hinted = hinted_version(self.path)  # before the manifests: a living owner may add one between
        """The newest version by the table's hint file; None without one."""
        self.manifests = tuple(Manifest(manifest_version(p), p) for p in manifests(self.path))
        candidates = [m for m in self.manifests if before is None or m.version < before]
        found = self._newest(candidates, fitting=True) or self._newest(candidates, fitting=False)
        self.head: Snapshot | None = None if found is None else found[1]
        """The newest version that opens and has the table's columns; else the newest that opens, or None."""
        newer = len(self.manifests) if found is None else self.manifests.index(found[0])
        self.bad_heads = self.manifests[:newer]
        """Manifests newer than `head`, newest first."""

    def _newest(self, manifests: Sequence[Manifest], *, fitting: bool) -> tuple[Manifest, Snapshot] | None:
        for manifest in manifests:
            snapshot = open_version(self.path, manifest.version)
            if snapshot is not None and (not fitting or fits(snapshot, self.name)):
                return manifest, snapshot
        return None

    @property
    def missing_versions(self) -> int:
        """How many versions the hint names beyond the newest manifest: their manifests are gone."""
        newest = self.manifests[0].version if self.manifests else 0
        return max(0, (self.hinted or 0) - newest)

    @property
    def fragments(self) -> dict[int, lance.LanceFragment]:
        """Fragments of `head` by id; none when no version opens."""
        return {} if self.head is None else self.head.fragments

    @property
    def older(self) -> tuple[Manifest, ...]:
        """Manifests older than `head`, newest first."""
        return self.manifests[len(self.bad_heads) + 1 :]

    def place(self, path: Path) -> str:
        """A path relative to the buffer, as in findings."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def next_row_id(self) -> int:
        """The row id that the next appended row gets."""
        return 0 if self.head is None else next_row_id(manifest_path(self.path, self.head.version))

    def data_path(self, number: int) -> Path:
        """The (first) data file of a fragment."""
        return self.path / "data" / str(self.fragments[number].metadata.files[0].path)

    def fragments_with(self, row_ids: Sequence[int]) -> set[int]:
        """The fragments of `head` that hold any of these rows."""
        if not row_ids or self.head is None:
            return set()
        return {number for number in self.fragments if np.isin(self.head.row_ids(number), row_ids).any()}

    def file_faults(self) -> Iterator[FileFault]:
        """Files of `head` that are missing, empty or of another size than written."""
        for number, fragment in self.fragments.items():
            for file in fragment.metadata.files:
                path = self.path / "data" / file.path
                kind = _fault(path, file.file_size_bytes)
                if kind:
                    yield FileFault(number, kind, path)
            deletions = fragment.deletion_file()
            if deletions and (kind := _fault(self.path / deletions, None)):
                yield FileFault(number, kind, self.path / deletions, deletions=True)

    def leftovers(self) -> Iterator[Path]:
        """Temporary files of killed writes."""
        for folder in ("data", "_versions", "_transactions", "_deletions"):
            for path in sorted((self.path / folder).glob("*")):
                if path.name.startswith(".tmp") or "#" in path.name:
                    yield path

    def orphans(self) -> list[Path]:
        """Data files that no readable version names."""
        left = {path.name for path in (self.path / "data").glob("*.lance")}
        for manifest in self.manifests:
            if not left:
                break
            version = open_version(self.path, manifest.version)
            for fragment in version.fragments.values() if version is not None else ():
                left -= {file.path for file in fragment.metadata.files}
        return sorted(self.path / "data" / name for name in left)

    def damaged_old_manifests(self) -> Iterator[Path]:
        """Manifests older than `head` that are empty or cut off."""
        for manifest in self.older:
            if not is_whole(manifest.path):
                yield manifest.path


def fits(snapshot: Snapshot, name: str) -> bool:
    """Whether a version has the columns that this package gives the table."""
    if name not in TABLES:
        return True
    wanted = {f.name: (f.type, f.nullable) for f in TABLES[name][0]}
    stored = attempt(lambda: {f.name: (f.type, f.nullable) for f in snapshot.dataset.schema})
    return bool(stored == wanted)


def open_version(path: Path, version: int) -> Snapshot | None:
    """A version of a table; None when it does not open."""
    import lance

    def load() -> Snapshot:
        return Snapshot(
            lance.dataset(
                str(path),
                version=version,
                metadata_cache_size_bytes=_CACHE_BYTES,
                index_cache_size_bytes=_CACHE_BYTES,
            )
        )

    found = attempt(load)
    # a manifest of zero bytes throughout parses as an empty one, of version 0
    return found if found is not None and found.version == version and found.names else None


def attempt(read: Callable[[], T]) -> T | None:
    """Result of `read()`, or None when Lance or Arrow cannot read the bytes.

    Damaged bytes may trigger bugs of the decoder: a Rust panic is a BaseException.
    """
    try:
        return read()
    except BaseException as err:
        if isinstance(err, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return None


def _fault(path: Path, wanted_bytes: int | None) -> FileKind | None:
    """The fault of a file; None for a complete file."""
    if not path.is_file():
        return "missing_file"
    found = path.stat().st_size
    if found == 0:
        return "empty_file"
    return "cut_file" if wanted_bytes and found != wanted_bytes else None
