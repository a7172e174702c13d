"""The location of a buffer, and which process may write to it.

A local folder is protected by an advisory lock, which ends with the process, however it dies. An object
store has no such lock: a process that opens a buffer for writing takes it over, and fences the former owner.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rft_data.buffer.faults import overtaken
from rft_data.buffer.manifests import check_newest
from rft_data.buffer.unfinished import MARK, check_finished, unfinished
from rft_data.core.errors import BusyError, FencedError, IntegrityError, MissingFileError
from rft_data.core.files import make_folder, write_text
from rft_data.core.lock import Lock, holder
from rft_data.core.objects import Objects, reached
from rft_data.core.schema import OLDEST_COPIED, SCHEMA_VERSION

if TYPE_CHECKING:
    from lancedb.db import DBConnection

OWNER_LOCK = "owner.lock"


class LocalFolder:
    """A folder with the tables, the marker `schema_version` and the lock `owner.lock`."""

    def __init__(self, root: Path, *, read_only: bool, repairing: bool = False) -> None:
        """Open `root`, creating it unless `read_only`.

        `repairing`: a repair may open what others must not write to.
        Raises: MissingFileError if it does not exist, BusyError if another process writes to it,
            IntegrityError if it was written under another schema version, or if the next commit would take
            the place of rows that a repair can put back.
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
            self._check_empty()
            write_text(marker, f"{SCHEMA_VERSION}\n")
        try:
            check_schema_version(self.root, marker.read_text().strip())
            if not (read_only or repairing):
                check_finished(self.root, unfinished(self.root))
                for table in sorted(self.root.glob("*.lance")):
                    check_newest(table)
        except IntegrityError:
            self.close()
            raise

    def _check_empty(self) -> None:
        tables = sorted(path.name for path in self.root.glob("*.lance"))
        if tables:
            self.close()
            raise IntegrityError(
                f"{self.root} holds tables ({', '.join(tables[:3])}) but no file 'schema_version', so "
                "their schema version is unknown: restore that file, or name another folder."
            )

    def _claim(self) -> Lock:
        make_folder(self.root)
        try:
            return Lock(self.root / OWNER_LOCK)
        except BusyError as err:
            owner = owner_pid(self.root) or "unknown"
            raise BusyError(
                f"buffer {self.root} is owned by another process (pid {owner}); a buffer has one writer: "
                "wait for that run to end or stop it, or open the buffer read-only."
            ) from err

    @property
    def may_have_rival(self) -> bool:
        """Whether a former owner may still write: the lock that it took was removed."""
        return self._lock is not None and self._lock.new

    def check_owner(self) -> None:
        """Check that the lock in the folder is still the one that this process took.

        Raises: FencedError.
        """
        if self._lock is not None and not self._lock.held():
            raise FencedError(
                f"{self.root / OWNER_LOCK} was removed or replaced, so another process may own buffer "
                f"{self.root} now; nothing of this call is stored. Stop this process and start it again."
            )

    def close(self) -> None:
        """Give up ownership; idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def owner_pid(root: Path) -> str:
    """Process id of the buffer's owner as text; empty when no process has it open for writing."""
    return holder(root / OWNER_LOCK)


class ObjectPrefix:
    """A prefix on an S3-compatible store; credentials and endpoint come from the usual AWS_* variables.

    The table `owner` holds one row: the epoch of the owner, which grows by compare-and-set.
    """

    def __init__(self, url: str, db: DBConnection, *, read_only: bool, repairing: bool = False) -> None:
        """Open the buffer at `url`, creating it unless `read_only`, and take it over.

        `repairing`: a repair may open what others must not write to.
        Raises: MissingFileError if it does not exist, IntegrityError if it has another schema version, or a
            repair of it was interrupted; StalledError if the store cannot be reached.
        """
        self.epoch = 0
        with reached(url):
            self._open(url, db, read_only=read_only, repairing=repairing)

    def _open(self, url: str, db: DBConnection, *, read_only: bool, repairing: bool) -> None:
        if OWNER not in db.list_tables().tables:
            if read_only:
                raise MissingFileError(f"there is no buffer at {url} (it has no table '{OWNER}').")
            self._create(db)
        table = db.open_table(OWNER)
        while True:
            [row] = table.search().to_list()
            check_schema_version(url, str(row["schema_version"]))
            if read_only:
                return
            if not repairing:
                check_finished(url, Objects(url).has(MARK))
            self.epoch = row["epoch"] + 1
            if table.update(where=f"epoch = {row['epoch']}", values={"epoch": self.epoch}).rows_updated == 1:
                return  # otherwise another owner was faster: read again

    may_have_rival = True
    """Nothing tells whether the former owner has ended."""

    def _create(self, db: DBConnection) -> None:
        row = {"key": "owner", "epoch": 0, "schema_version": SCHEMA_VERSION}
        db.create_table(OWNER, pa.Table.from_pylist([row], schema=_OWNER_SCHEMA), exist_ok=True)

    def check_owner(self, db: DBConnection) -> None:
        """Check that no other owner has taken over.

        Raises: FencedError.
        """
        [row] = db.open_table(OWNER).search().to_list()
        if row["epoch"] != self.epoch:
            raise overtaken(f"the owner's epoch is {row['epoch']}, this process has {self.epoch}")

    def close(self) -> None:
        """Does nothing: there is no lock, and the next owner takes over."""


OWNER = "owner"
_OWNER_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
    ]
)


def check_schema_version(root: Path | str, found: str) -> None:
    """Refuse a buffer of another schema version, older or newer, before a row of it is read.

    Raises: IntegrityError.
    """
    if found == str(SCHEMA_VERSION):
        return
    older = found.isdigit() and OLDEST_COPIED <= int(found) < SCHEMA_VERSION
    remedy = (
        f"copy it to the present version: rft buffer upgrade {root} NEW_FOLDER"
        if older
        else "open it with the version of rft-data that wrote it"
    )
    raise IntegrityError(
        f"buffer {root} has schema version {found or 'unknown'}, this package reads and writes "
        f"{SCHEMA_VERSION}; {remedy}."
    )
