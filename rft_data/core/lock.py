"""An advisory lock on a file (`flock`): one process has it, others see which; it ends with that process."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rft_data.core.errors import BusyError

_PATIENCE_S = 0.5
"""Checking whether somebody holds a lock also takes it, briefly."""
_LOOK_S = 0.02
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

        Raises: BusyError if another process holds it.
        """
        self._file = path.open("a+")
        _flock(self._file, path, fcntl.LOCK_EX, _PATIENCE_S)
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        _HELD.add(self._file)

    def release(self) -> None:
        """Let others take it; idempotent."""
        self._file.close()


@contextmanager
def kept_free(path: Path) -> Iterator[None]:
    """Keep the lock on `path` from being taken inside the block; a file that is missing holds nobody.

    Raises: BusyError if a process holds it.
    """
    try:
        file = path.open()
    except FileNotFoundError:
        yield
        return
    with file:
        _flock(file, path, fcntl.LOCK_SH, 0.0)
        yield


def holder(path: Path) -> str:
    """Id of the process that holds the lock on `path`, or `unknown`; empty if no process does."""
    try:
        with kept_free(path):
            return ""
    except BusyError:
        return path.read_text().strip() or "unknown"


def _flock(file: IO[str], path: Path, kind: int, patience_s: float) -> None:
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError as err:
            if time.monotonic() >= end:
                file.close()
                raise BusyError(f"{path} is locked by another process; wait for it, or end it.") from err
        time.sleep(_LOOK_S)
