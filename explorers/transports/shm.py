"""One copy of a weight directory per node, in shared memory, for all engines of the node.

The first engine that asks copies and checks digests; the others wait and read the copy. Locks are flocks,
which end with their process, so the copies of a killed run are found and removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from explorers.transports.arrival import Arrived, checked_manifest
from explorers.transports.directory import opened
from rft_data.core.canonical import content_id
from rft_data.core.errors import BusyError, DiskFullError, IntegrityError, StalledError
from rft_data.core.files import MANIFEST_FILE, manifest_bytes
from rft_data.core.lock import PlainLock
from rft_data.core.rows import WeightRef

_MEMORY = "/dev/shm"  # noqa: S108 - the fixed path of shared memory
_USERS = "users.lock"
_PIECE_BYTES = 16 << 20
_LOOK_S = 0.01


class SharedMemory:
    """Copies published folders into a folder of this user and run below `root`."""

    engine_options: Mapping[str, object] = {}

    def __init__(self, root: str = _MEMORY, deadline_s: float = 600.0) -> None:
        """`root`: a folder in memory that every engine of the node sees; `deadline_s`: for a copy."""
        self._root = Path(root) / f"rft-weights-{os.getuid()}"
        self._deadline_s = deadline_s
        self._users: dict[Path, PlainLock] = {}

    def fetch(self, ref: WeightRef) -> Arrived:
        """Copy the folder to shared memory unless another engine of this node has; checked while copied.

        Raises: IntegrityError when the folder is damaged or of another version, DiskFullError without room,
            StalledError when the engine that copies takes longer than the deadline.
        """
        manifest = checked_manifest(manifest_bytes(Path(ref.path)), ref, Path(ref.path) / MANIFEST_FILE)
        folder = self._run_folder(ref)
        copy = folder / f"v{ref.version:08d}"
        lock = self._copied(Path(ref.path), copy, manifest)
        try:
            arrived = opened(copy, ref)
        except BaseException:
            lock.release()
            raise
        return Arrived(arrived.tensors, arrived.probe, arrived.source, done=lambda error: lock.release())

    def close(self) -> None:
        """Release the runs' folders; the last process that uses a folder removes it."""
        for folder, users in self._users.items():
            users.release()
            _remove_abandoned(folder)
        self._users.clear()

    def _copied(self, directory: Path, copy: Path, manifest: Mapping[str, Any]) -> PlainLock:
        """Copy the folder unless there is a copy; a shared lock on the copy, which keeps it there."""
        end = time.monotonic() + self._deadline_s
        while True:
            there = _is_copy(copy, directory)
            lock = self._locked(copy, end, alone=not there)
            if lock is None:
                time.sleep(_LOOK_S)
            elif there and _is_copy(copy, directory):  # else it was removed before it was locked
                return lock
            else:
                with lock:
                    if not there and not _is_copy(copy, directory):
                        _remove_unread(copy.parent, keep=copy)
                        _copy(directory, copy, manifest)

    def _locked(self, copy: Path, end: float, *, alone: bool) -> PlainLock | None:
        """A lock on a copy if it is free; not waited for, because whether it is wanted alone may change."""
        try:
            return PlainLock(_lock_path(copy), alone=alone, patience_s=0.0)
        except BusyError as err:
            if time.monotonic() <= end:
                return None
            raise StalledError(
                f"this engine waited {self._deadline_s:g} s for another engine of this node, which "
                f"copies or reads {copy}; check that explorer, or raise transport.deadline_s."
            ) from err

    def _run_folder(self, ref: WeightRef) -> Path:
        """The run's folder; its first use removes the folders of runs without a process."""
        folder = self._root / content_id(str(Path(ref.path).resolve().parent), ref.run_id)[:16]
        if folder not in self._users:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for other in self._root.iterdir():
                _remove_abandoned(other)
            self._users[folder] = self._join(folder)
        return folder

    def _join(self, folder: Path) -> PlainLock:
        """Lock the run's folder for this process, so that no other removes it."""
        while True:
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # removed in between
                return PlainLock(folder / _USERS, alone=False, patience_s=self._deadline_s)


def _remove_abandoned(folder: Path) -> None:
    """Remove a run's folder unless a live process has locked it."""
    if not (folder / _USERS).is_file():
        return
    with suppress(BusyError, FileNotFoundError), PlainLock(folder / _USERS, alone=True, patience_s=0.0):
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unread(folder: Path, keep: Path) -> None:
    """Remove older copies that no engine is reading; a loaded copy is not needed again."""
    for old in folder.glob("v????????"):
        if old.name >= keep.name:
            continue
        with suppress(BusyError, FileNotFoundError), PlainLock(_lock_path(old), alone=True, patience_s=0.0):
            shutil.rmtree(old)


def _lock_path(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.lock")


def _is_copy(copy: Path, directory: Path) -> bool:
    """Whether `copy` exists and has the manifest of `directory`; a copy that exists is complete."""
    with suppress(FileNotFoundError):
        return (copy / MANIFEST_FILE).read_bytes() == (directory / MANIFEST_FILE).read_bytes()
    return False


def _copy(directory: Path, copy: Path, manifest: Mapping[str, Any]) -> None:
    """Copy the files of the manifest and check their digests; `copy` exists only when it is complete."""
    draft = copy.with_name(f".draft-{copy.name}")
    for leftover in (draft, copy):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    wanted = sum(facts["bytes"] for facts in manifest["files"].values())
    free = shutil.disk_usage(draft).free
    try:
        if wanted > free:
            raise OSError(errno.ENOSPC, f"{free:,} bytes are free and {wanted:,} are needed")
        for name, facts in manifest["files"].items():
            target = draft / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(directory / name, target, facts["blake2b"])
        shutil.copy2(directory / MANIFEST_FILE, draft / MANIFEST_FILE)
    except BaseException as err:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(err, OSError) and err.errno == errno.ENOSPC:
            raise DiskFullError(
                err.errno,
                f"no room in shared memory for the weights in {directory} ({err.strerror}); "
                "enlarge it (docker: --shm-size) or use the transport 'directory'.",
            ) from err
        raise
    draft.rename(copy)


def _copy_file(source: Path, target: Path, digest: str) -> None:
    seen = hashlib.blake2b(digest_size=16)
    try:
        with source.open("rb") as reader, target.open("wb") as writer:
            while piece := reader.read(_PIECE_BYTES):
                seen.update(piece)
                writer.write(piece)
    except FileNotFoundError as err:
        raise IntegrityError(f"{source}, which the manifest lists, is missing: publish again.") from err
    if seen.hexdigest() != digest:
        raise IntegrityError(f"{source} does not match the digest in its manifest: it is damaged.")
