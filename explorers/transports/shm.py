"""One copy of a weight directory per node, in shared memory, for all engines of the node.

The first engine that asks copies and checks digests; the others wait and read the copy. Locks are flocks,
which end with their process, so the copies of a killed run are found and removed.
"""

from __future__ import annotations

import errno
import fcntl
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
from rft_data.core.errors import DiskFullError, IntegrityError, StalledError
from rft_data.core.files import MANIFEST_FILE, manifest_bytes
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
        self._users: dict[Path, int] = {}

    def fetch(self, ref: WeightRef) -> Arrived:
        """Copy the folder to shared memory unless another engine of this node has; checked while copied.

        Raises: IntegrityError when the folder is damaged or of another version, DiskFullError without room,
            StalledError when the engine that copies takes longer than the deadline.
        """
        manifest = checked_manifest(manifest_bytes(Path(ref.path)), ref, Path(ref.path) / MANIFEST_FILE)
        folder = self._run_folder(ref)
        copy = folder / f"v{ref.version:08d}"
        deadline = time.monotonic() + self._deadline_s
        while True:
            lock, alone = self._locked(copy, Path(ref.path), deadline)
            if alone and not _is_copy(copy, Path(ref.path)):
                _remove_unread(folder, keep=copy)
                _copy(Path(ref.path), copy, manifest)
            fcntl.flock(lock, fcntl.LOCK_SH)  # another engine may remove the copy between the two locks
            if _is_copy(copy, Path(ref.path)):
                break
            os.close(lock)
        try:
            arrived = opened(copy, ref)
        except BaseException:
            os.close(lock)
            raise
        return Arrived(arrived.tensors, arrived.probe, arrived.source, done=lambda error: os.close(lock))

    def close(self) -> None:
        """Release the runs' folders; the last process that uses a folder removes it."""
        for folder, users in self._users.items():
            os.close(users)
            _remove_abandoned(folder)
        self._users.clear()

    def _locked(self, copy: Path, directory: Path, deadline: float) -> tuple[int, bool]:
        """A lock on a copy (open descriptor), and whether it is exclusive: it is while there is no copy."""
        lock = os.open(_lock_path(copy), os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            kind = fcntl.LOCK_SH if _is_copy(copy, directory) else fcntl.LOCK_EX
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
                return lock, kind == fcntl.LOCK_EX
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise StalledError(
                        f"this engine waited {self._deadline_s:g} s for another engine of this node, which "
                        f"copies or reads {copy}; check that explorer, or raise transport.deadline_s."
                    ) from None
                time.sleep(_LOOK_S)

    def _run_folder(self, ref: WeightRef) -> Path:
        """The run's folder; its first use removes the folders of runs without a process."""
        folder = self._root / content_id(str(Path(ref.path).resolve().parent), ref.run_id)[:16]
        if folder not in self._users:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for other in self._root.iterdir():
                _remove_abandoned(other)
            self._users[folder] = _join(folder)
        return folder


def _join(folder: Path) -> int:
    """Lock the run's folder for this process; check that it was not removed before the lock was taken."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            users = os.open(folder / _USERS, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # removed in between
        fcntl.flock(users, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(folder / _USERS).st_ino == os.fstat(users).st_ino:
                return users
        os.close(users)


def _remove_abandoned(folder: Path) -> None:
    """Remove a run's folder unless a live process has locked it."""
    try:
        users = os.open(folder / _USERS, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(users)


def _remove_unread(folder: Path, keep: Path) -> None:
    """Remove older copies that no engine is reading; a loaded copy is not needed again."""
    for old in folder.glob("v????????"):
        if old.name >= keep.name:
            continue
        lock = os.open(_lock_path(old), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old)
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            os.close(lock)


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
