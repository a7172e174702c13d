"""Items of a queue by the person who works on them, so that two people do not get the same one.

A claim ends with its answer, or after ten minutes. Claims are kept in an SQLite file in the buffer's folder,
which every page on this machine reads. For a buffer on an object store only one page knows its claims.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from rft_data.core.errors import RftError

CLAIM_S = 600.0
"""After so many seconds without an answer an item may be given to somebody else."""
CLAIMS_FILE = "claims.sqlite"
_WAIT_S = 10.0
_TABLE = "create table if not exists claims (item text, author text, until real, primary key (item, author))"


class Claims:
    """The claims on one buffer's items; safe to use from many threads and processes."""

    def __init__(self, location: str) -> None:
        """Args: location: folder or URL of the buffer."""
        self._path = ":memory:" if "://" in location else str(Path(location) / CLAIMS_FILE)
        self._lock = Lock()
        self._open: sqlite3.Connection | None = None

    def take(self, item: str, author: str, room: int) -> bool:
        """Claim an item for an author, anew or for longer; False while `room` others have claimed it."""
        now = time.time()
        with self._transaction() as claims:
            claims.execute("delete from claims where until < ?", (now,))
            others = claims.execute(
                "select count(*) from claims where item = ? and author <> ?", (item, author)
            ).fetchone()[0]
            if others >= room:
                return False
            claims.execute("insert or replace into claims values (?, ?, ?)", (item, author, now + CLAIM_S))
            return True

    def release(self, item: str, author: str) -> None:
        """End a claim; idempotent."""
        with self._transaction() as claims:
            claims.execute("delete from claims where item = ? and author = ?", (item, author))

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One writer at a time, of all processes. Raises: RftError when the file cannot be written."""
        with self._lock:
            try:
                if self._open is None:
                    self._open = sqlite3.connect(
                        self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
                    )
                self._open.execute(_TABLE)
                self._open.execute("begin immediate")
                try:
                    yield self._open
                    self._open.execute("commit")
                finally:
                    if self._open.in_transaction:  # it failed, and must not hold up the next one
                        self._open.execute("rollback")
            except sqlite3.Error as err:
                raise RftError(f"{self._path} cannot hold claims on items: {err}; remove it.") from err
