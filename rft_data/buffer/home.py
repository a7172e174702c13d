"""Where a buffer lives and who may write to it: a local folder, held by an advisory lock.

The lock goes with the process, however it dies.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from rft_data.errors import BusyError, IntegrityError, MissingFileError
from rft_data.manifest import write_text
from rft_data.schema import SCHEMA_VERSION


class LocalHome:
    """A folder with the tables, the marker `schema_version` and the lock `owner.lock`."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        """Open `root`, creating it unless `read_only`.

        Raises: MissingFileError if it does not exist, BusyError if another process writes to it,
            IntegrityError if it was written under another schema version.
        """
        self.root = root.resolve()  # a later chdir or rename must not redirect a writer
        marker = self.root / "schema_version"
        if read_only and not marker.is_file():
            raise MissingFileError(
                f"there is no buffer at {self.root} (no file 'schema_version' in it); "
                "name the folder of a run's buffer, for example runs/quickstart/buffer."
            )
        self._lock = None if read_only else self._claim()
        if not marker.is_file():
            write_text(marker, f"{SCHEMA_VERSION}\n")
        try:
            check_schema_version(self.root, marker.read_text().strip())
        except IntegrityError:
            self.close()
            raise

    def _claim(self) -> IO[str]:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = (self.root / "owner.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise BusyError(
                f"buffer {self.root} is owned by another process (pid {owner}); a buffer has one writer: "
                "wait for that run to end or stop it, or open the buffer read-only."
            ) from err
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def close(self) -> None:
        """Give up ownership; idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def check_schema_version(root: Path | str, found: str) -> None:
    """Refuse a buffer of another schema version, older or newer, before a row of it is read.

    Raises: IntegrityError.
    """
    if found == str(SCHEMA_VERSION):
        return
    older = found.isdigit() and int(found) < SCHEMA_VERSION
    remedy = (
        f"copy it into the new form: rft buffer upgrade {root} NEW_FOLDER"
        if older
        else "open it with the version of rft-data that wrote it"
    )
    raise IntegrityError(
        f"buffer {root} has schema version {found or 'unknown'}, this package reads and writes "
        f"{SCHEMA_VERSION}; {remedy}."
    )
