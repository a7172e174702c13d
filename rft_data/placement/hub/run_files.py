"""The calls of a hub about the folders of its run: models, weights and checkpoints, for nodes without them.

A client names folders as the run does. Nothing but the run's folders for such files, and the models it was
given, is read or written.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath

import pyarrow as pa

from rft_data.core.errors import ConflictError, MissingFileError, TokenError
from rft_data.core.files import MANIFEST_FILE, fsync, make_folder
from rft_data.core.once import Once
from rft_data.placement.hub.file_parts import FileParts

_MARK = ".home"
_OF_ROLES = ("weights", "checkpoints", "stages", "model", "best", "final", ".draft-final")
"""Folders in the run's folder that roles on other nodes read, and fill."""

Listing = dict[str, tuple[int, str]]
"""Name of each file below a folder, with its size in bytes and its digest."""


@dataclass(frozen=True, slots=True)
class RunFolders:
    """Folders that a hub serves."""

    directory: Path
    """The run's."""
    models: Sequence[Path] = ()
    """Models elsewhere, which are only read."""
    shown: Sequence[str] = ()
    """Patterns of the small files in the run's folder that whoever looks at the run may read."""


class RunFiles:
    """The calls, for one run."""

    def __init__(self, folders: RunFolders) -> None:
        """Leave a mark in the run's folder: who finds it there sees the folder itself."""
        self._own = [folders.directory.absolute() / name for name in _OF_ROLES]
        self._models = [model.absolute() for model in folders.models]
        self._mark = folders.directory.absolute() / _MARK
        self._directory, self._shown = folders.directory, folders.shown
        self._text = secrets.token_hex(16)
        make_folder(self._mark.parent)
        self._mark.write_text(self._text)
        self._parts = FileParts()
        self.calls: dict[str, Callable[..., object]] = {
            "mark": self.mark,
            "small_files": self.small_files,
            "list_files": self.list_files,
            "read_file": self.read_file,
            "begin_folder": self.begin_folder,
            "end_folder": self.end_folder,
        }
        self.calls_with_rows: dict[str, Callable[..., object]] = {"write_file": self.write_file}

    def mark(self) -> tuple[str, str]:
        """Path and text of the mark."""
        return str(self._mark), self._text

    def small_files(self) -> dict[str, tuple[float, str]]:
        """Files that may be read by those who look at the run: time of change, and text."""
        found = {}
        for path in chain.from_iterable(map(self._directory.glob, self._shown)):
            with suppress(FileNotFoundError):  # it was pruned meanwhile
                found[str(path.relative_to(self._directory))] = (path.stat().st_mtime, path.read_text())
        return found

    def list_files(self, folder: str) -> Listing:
        """The files of a folder; empty if there is none."""
        return self._listing(self._allowed(folder, [*self._own, *self._models]))

    def read_file(self, folder: str, name: str, offset: int) -> Once[pa.Buffer]:
        """Up to PART_BYTES of a file, as an Arrow stream. Raises: MissingFileError if it is gone."""
        where = self._allowed(folder, [*self._own, *self._models])
        try:
            part = self._parts.part(where / plain_name(name), offset)
            part.value()
        except (FileNotFoundError, NotADirectoryError) as err:
            raise MissingFileError(f"{where} has no file '{name}' any more; fetch the folder again.") from err
        return part

    def begin_folder(self, folder: str) -> None:
        """Make an empty folder, in place of an incomplete one.

        Raises: ConflictError if it is complete, or one in it is.
        """
        where = self._allowed(folder, self._own)
        for manifest in where.rglob(MANIFEST_FILE):
            raise _complete(manifest.parent)
        shutil.rmtree(where, ignore_errors=True)
        make_folder(where)

    def write_file(self, table: pa.Table, folder: str, name: str, offset: int) -> None:
        """Write a part of a file; may be repeated.

        Raises: ConflictError if a folder that it is in is complete. Manifests come last.
        """
        where = self._allowed(folder, self._own)
        path = where / plain_name(name)
        for parent in (one for one in path.parents if one.is_relative_to(where)):
            if path.name != MANIFEST_FILE and (parent / MANIFEST_FILE).exists():
                raise _complete(parent)
        make_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(offset)
            for part in table.column("data"):
                file.write(part.as_buffer())

    def end_folder(self, folder: str) -> Listing:
        """Flush a folder; returns what it holds."""
        where = self._allowed(folder, self._own)
        for path in (*where.rglob("*"), where):
            fsync(path)
        return self._listing(where)

    def _listing(self, folder: Path) -> Listing:
        return {name: (path.stat().st_size, self._parts.digest(path)) for name, path in files_below(folder)}

    def _allowed(self, folder: str, roots: Sequence[Path]) -> Path:
        """Raises: TokenError for a folder that is not below one of `roots`."""
        path = Path(folder)
        plain = os.path.normpath(folder) == folder and path.is_absolute()
        for root in roots if plain else ():
            below = path == root or root in path.parents
            if below and (root in self._models or path.resolve().is_relative_to(root.parent.resolve())):
                return path
        raise TokenError(
            f"'{folder}' is none of the folders that this run shares with its nodes: "
            f"{', '.join(str(root) for root in roots)}."
        )


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name, relative to the folder, and path of every file below it; the manifest comes last."""
    found = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    for path in sorted(found, key=lambda path: (path.name == MANIFEST_FILE, str(path))):
        yield str(path.relative_to(folder)), path


def _complete(folder: Path) -> ConflictError:
    return ConflictError(f"{folder} is complete and may not be written again; resume the run.")


def plain_name(name: str) -> str:
    """The name of a file below a folder, as the other side of a connection gives it.

    Raises: TokenError for a name that leads out of its folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
        raise TokenError(f"{name!r} is no name of a file in a folder.")
    return name
