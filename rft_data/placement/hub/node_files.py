"""The folders of a run on a node that does not see them: copies under the same paths, kept equal by the hub.

A node that sees the run's folder, because it is the run's own or they share a disk, copies nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from rft_data.core.errors import (
    BusyError,
    ConflictError,
    IntegrityError,
    MissingFileError,
    StalledError,
    UnknownComponentError,
)
from rft_data.core.files import file_digest
from rft_data.core.lock import PlainLock
from rft_data.core.protocols import BufferClient
from rft_data.core.reader import BufferReader
from rft_data.placement.hub.connection import Connection
from rft_data.placement.hub.file_parts import PART, PART_BYTES
from rft_data.placement.hub.model_copies import COPIES, ModelCopy, leads_to_copy
from rft_data.placement.hub.run_files import Listing, files_below, plain_name

_DEADLINE_S = 600.0
_COPY_DEADLINE_S = 3600.0
"""How long the copy that another role of this node makes is waited for: a large model over a slow network."""
_KEPT = 4
"""Folders that were handed in and are not removed yet: weights and checkpoints of the last steps."""


class NodeFiles(Protocol):
    """How a role gets folders of its run, and hands in those it has written."""

    shared: bool
    """Whether this node sees the run's folder itself."""

    def fetch(self, folder: Path) -> None:
        """Have a folder of the run here, under the same path.

        Raises: MissingFileError when the run has none there, ConflictError when this node has another one,
            IntegrityError for bytes that do not match their digest.
        """
        ...

    def send(self, folder: Path) -> None:
        """Hand in a folder that was written here; returns when the run's node has it on disk.

        Raises: ConflictError when it has another, complete one; IntegrityError when it arrived damaged.
        """
        ...


class SharedFiles:
    """The run's folder is visible: there is nothing to copy."""

    shared = True

    def fetch(self, folder: Path) -> None:
        """It is there."""

    def send(self, folder: Path) -> None:
        """It is there."""


class CopiedFiles:
    """Copies, through a hub."""

    shared = False

    def __init__(self, connection: Connection, run: Path) -> None:
        """`connection`: to the run's hub. `run`: the run's folder."""
        self._connection = connection
        self._run = run
        self._sent: list[Path] = []

    def fetch(self, folder: Path) -> None:
        """Copy it, once per node: other roles of the node wait and use the copy.

        Files that came whole before a copy was interrupted are not sent again, nor those that another copy
        of a model has.
        """
        theirs = self._listing(folder)
        if not theirs:
            raise MissingFileError(f"the run has no files in {folder}; is it the run's own folder?")
        if self._run in folder.parents:
            self._fetch_own(folder, theirs)
        else:
            self._fetch_model(folder, theirs)

    def _fetch_own(self, folder: Path, theirs: Listing) -> None:
        """A folder of the run is written once: the copy is the folder."""
        copied = folder.with_name(f".{folder.name}.copied")
        with _one_at_a_time(folder, folder.with_name(f".{folder.name}.lock")):
            if _listed(folder) == theirs:
                return
            _check_copied(folder, copied)
            shutil.rmtree(folder, ignore_errors=True)
            draft = folder.with_name(f".copy-{folder.name}")
            self._complete(draft, folder, theirs)
            copied.touch()
            draft.rename(folder)

    def _fetch_model(self, folder: Path, theirs: Listing) -> None:
        """A model may be changed between two runs, or be another one for another run."""
        copied = folder.with_name(f".{folder.name}.copied")  # by a release that kept no copies by content
        with _one_at_a_time(folder, folder.with_name(f"{COPIES}.lock")):
            copy, before = ModelCopy(folder, theirs), None
            if folder.exists() and not leads_to_copy(folder):
                if not copied.exists() and _listed(folder) == theirs:
                    return
                _check_copied(folder, copied)
                before = folder
            if not copy.there():
                copy.make(lambda draft: self._complete(draft, folder, theirs), before)
            copy.use()
            copied.unlink(missing_ok=True)

    def _complete(self, draft: Path, folder: Path, theirs: Listing) -> None:
        """Copy what a copy of the folder lacks, which may have been interrupted. Raises: IntegrityError."""
        whole = {name for name, facts in _listed(draft).items() if theirs.get(name) == facts}
        for name, path in list(files_below(draft)):
            if name not in whole:
                path.unlink()
        for name, (size, digest) in theirs.items():
            if name in whole:
                continue
            self._fetch_file(folder, name, size, draft / name)
            if file_digest(draft / name) != digest:
                raise IntegrityError(f"'{name}' of {folder} came damaged, or was changed; start again.")

    def _fetch_file(self, folder: Path, name: str, size: int, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for offset in range(0, size, PART_BYTES):
                args = {"folder": str(folder), "name": name, "offset": offset}
                part = self._connection.rows("read_file", args, deadline_s=_DEADLINE_S)
                file.write(part.column("data")[0].as_buffer())

    def send(self, folder: Path) -> None:
        """Send every file, the manifest last, and compare what arrived; the newest _KEPT stay here too."""
        self._send(folder)
        self._sent = [*(sent for sent in self._sent if sent != folder), folder]
        for old in self._sent[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        self._sent = self._sent[-_KEPT:]

    def _send(self, folder: Path) -> None:
        ours, args = _listed(folder), {"folder": str(folder)}
        if ours.items() <= self._listing(folder).items():
            return
        self._connection.call("begin_folder", args, deadline_s=_DEADLINE_S)
        for name, path in files_below(folder):
            with path.open("rb") as file:
                for offset in range(0, max(1, ours[name][0]), PART_BYTES):
                    part = pa.table([pa.array([file.read(PART_BYTES)], PART[0].type)], schema=PART)
                    where = {**args, "name": name, "offset": offset}
                    self._connection.call("write_file", where, part, deadline_s=_DEADLINE_S)
        arrived = _as_listing(self._connection.call("end_folder", args, deadline_s=_DEADLINE_S))
        if arrived != ours:
            wrong = sorted(name for name, _ in arrived.items() ^ ours.items())
            raise IntegrityError(f"{folder} did not arrive whole on the run's node: {wrong[:5]}; resume.")

    def _listing(self, folder: Path) -> Listing:
        return _as_listing(
            self._connection.call("list_files", {"folder": str(folder)}, deadline_s=_DEADLINE_S)
        )


def node_files(buffer: BufferClient | BufferReader | None) -> NodeFiles:
    """The files of the run that a role belongs to, by the buffer that it was given."""
    from rft_data.placement.hub.client import HubClient  # it imports LanceDB

    if not isinstance(buffer, HubClient):
        return SharedFiles()
    try:
        mark, text = buffer.connection.call("mark", {}, deadline_s=_DEADLINE_S)
    except UnknownComponentError:  # a hub without a run
        return SharedFiles()
    try:
        seen = Path(mark).read_text() == text
    except OSError:
        seen = False
    return SharedFiles() if seen else CopiedFiles(buffer.connection, Path(mark).parent)


def _as_listing(found: dict[str, list[object]]) -> Listing:
    return {plain_name(name): (int(str(size)), str(digest)) for name, (size, digest) in found.items()}


def _listed(folder: Path) -> Listing:
    return {name: (path.stat().st_size, file_digest(path)) for name, path in files_below(folder)}


def _check_copied(folder: Path, copied: Path) -> None:
    """Raises: ConflictError for a folder that did not come from the run's node."""
    if folder.exists() and not copied.exists():
        raise ConflictError(
            f"{folder} on this node holds other files than on the run's node, and was not copied from there; "
            "move one of them, so that paths mean the same everywhere."
        )


@contextmanager
def _one_at_a_time(folder: Path, path: Path) -> Iterator[None]:
    """Keep the other processes of this node from copying the folder, by a lock at `path`.

    Raises: MissingFileError when this process may not write there; StalledError when another one copies for
        longer than _COPY_DEADLINE_S.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = PlainLock(path, alone=True, patience_s=_COPY_DEADLINE_S)
    except BusyError as err:
        raise StalledError(
            f"another process of this node has copied {folder} for more than {_COPY_DEADLINE_S:g} s; "
            "end the run's roles on this node and resume."
        ) from err
    except OSError as err:
        raise MissingFileError(
            f"{folder} is not on this node, and could not be copied there ({err}); nodes keep the run's "
            "files under the paths that they have on the run's node: use one that may be written everywhere."
        ) from err
    with lock:
        yield
