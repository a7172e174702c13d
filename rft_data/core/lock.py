"""Advisory locks on files (`flock`), which end with their process.

`Lock`: one process has it, and others see which. `PlainLock`: one has it alone or many share it, unnamed.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rft_data.core.errors import BusyError, RftError

_PATIENCE_S = 0.5
"""Seconds to wait: a process that only looks whether a lock is held takes it too, for a moment."""
_LOOK_S = 0.02
_ID = re.compile(rb"\d*\n?|\0*")
"""A process id, what a killed writer left of it, or the zeros that a power cut left."""
_SHOWN_BYTES = 32
_HELD: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: the lock is the parent's, and must end with the parent."""
    for file in list(_HELD):
        file.close()


os.register_at_fork(after_in_child=_forget_all)


class Lock:
    """The lock on one file, held from its making to `release` or the end of this process."""

    def __init__(self, path: Path) -> None:
        """Take it and write this process's id into the file, which is made if need be.

        Raises: BusyError if another process holds it; RftError if the file is not a lock.
        """
        self._path = path
        self._file = _taken(path, fcntl.LOCK_EX, _PATIENCE_S)
        content = os.pread(self._file.fileno(), _SHOWN_BYTES, 0)
        if not _ID.fullmatch(content):
            self._file.close()
            raise RftError(
                f"{path} is not a lock of rft-data: it holds {content!r} where a process id is wanted; "
                "move it away, if no program of yours needs it."
            )
        self.new = not content.strip(b"\0\n")
        """Whether the file was new: one that was removed may still be locked by another process."""
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def held(self) -> bool:
        """Whether the file at the path is still the one that this process has locked."""
        return _is_at(self._path, self._file)

    def release(self) -> None:
        """Let others take it; idempotent."""
        self._file.close()


class PlainLock:
    """A lock that does not say who holds it: one process alone, or several that share it."""

    def __init__(self, path: Path, *, alone: bool, patience_s: float) -> None:
        """Take it; the file is made if need be, its folder is not.

        Raises: BusyError if it was not free for `patience_s`; RftError if the file is not a lock;
            FileNotFoundError without its folder.
        """
        self._file = _taken(path, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, patience_s)

    def release(self) -> None:
        """Let others take it; idempotent."""
        self._file.close()

    def __enter__(self) -> PlainLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _taken(path: Path, kind: int, patience_s: float) -> IO[str]:
    """The lock file, locked; not one that was replaced before this process had it."""
    end = time.monotonic() + patience_s
    while True:
        file = _opened(path, os.O_RDWR | os.O_CREAT)
        _HELD.add(file)
        _flock(file, path, kind, end)
        if _is_at(path, file):
            return file
        file.close()


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(file.fileno()))


def _opened(path: Path, flags: int) -> IO[str]:
    """The lock file, opened; never a link, whose target would be written to.

    Raises: RftError if there is something else; FileNotFoundError if there is nothing.
    """
    if path.is_symlink():
        raise RftError(f"{path} is a symbolic link, where a lock of rft-data is wanted; remove it.")
    if path.exists() and not path.is_file():
        raise RftError(f"{path} is not a file, where a lock of rft-data is wanted; move it away.")
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "r+" if flags & os.O_RDWR else "r")


@contextmanager
def kept_free(path: Path) -> Iterator[None]:
    """Keep the lock on `path` from being taken inside the block; a missing file is free.

    Raises: BusyError if a process holds it; RftError if the file is not a lock.
    """
    try:
        file = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    with file:
        _flock(file, path, fcntl.LOCK_SH, time.monotonic())
        yield


def holder(path: Path) -> str:
    """Id of the process that holds the lock on `path`, or `unknown`; empty if no process does."""
    try:
        with kept_free(path):
            return ""
    except BusyError:
        content = path.read_bytes()[:_SHOWN_BYTES]
        return content.strip(b"\0\n").decode() or "unknown" if _ID.fullmatch(content) else "unknown"


def _flock(file: IO[str], path: Path, kind: int, end: float) -> None:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError as err:
            if time.monotonic() >= end:
                file.close()
                raise BusyError(f"{path} is locked by another process; wait for it, or end it.") from err
        time.sleep(_LOOK_S)
