"""The LanceDB tables of one buffer: creates them by `schema.TABLES`, appends to them, opens them for readers.

It does not interpret rows. A commit names the version it builds on: on an object store it fails after
another owner took over, and everywhere a version that is not the next one is an error.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rft_data.buffer.creation import FORMAT, create, half_made
from rft_data.buffer.durability import Barrier, Durability
from rft_data.buffer.faults import damage_named, overtaken, some_columns, storage_errors, stored_beside
from rft_data.buffer.growth import Growth
from rft_data.buffer.location import LocalFolder, ObjectPrefix
from rft_data.buffer.row_order import check_order
from rft_data.buffer.table_rows import TableRows
from rft_data.buffer.takeover import take_over
from rft_data.buffer.zones import NUMBERED, Zones
from rft_data.core.errors import BusyError, FencedError, RftError
from rft_data.core.failpoints import failpoint
from rft_data.core.objects import PATIENT, Objects, reached
from rft_data.core.schema import TABLES
from rft_data.core.scratch import check_has_files

if TYPE_CHECKING:
    from lance import LanceDataset
    from lancedb.db import DBConnection
    from lancedb.table import Table

_CACHE_BYTES = 32 << 20
"""Lance's metadata cache grows with every version otherwise (1 GB after 5,000 appends, measured)."""

_STORAGE_OPTIONS = {"new_table_enable_stable_row_ids": "true", "new_table_data_storage_version": FORMAT}


class Store:
    """Tables of one buffer, in a folder or under an object-store prefix, with one writing process.

    Safe to use from many threads.
    """

    def __init__(self, location: str, *, read_only: bool, durability: Durability = "process") -> None:
        """Open the folder or object-store prefix, creating it unless `read_only`.

        Raises: MissingFileError, BusyError or IntegrityError (see `LocalFolder` and `ObjectPrefix`);
            RecipeError for the address of a hub.
        """
        check_has_files(location)
        import lance  # 0.4 s: not paid by `rft --help` or `rft recipe validate`

        self.read_only = read_only
        self.local = None if "://" in location else Path(location).resolve()
        """The folder; resolved, so that a later chdir or rename does not redirect a writer."""
        self.location = location.rstrip("/") if self.local is None else str(self.local)
        power = durability == "power" and not read_only
        self._barrier = Barrier(self.local) if power and self.local is not None else None
        self._folder: LocalFolder | ObjectPrefix | None = None
        if self.local is not None:
            self._folder = LocalFolder(self.local, read_only=read_only)
        self._session = lance.Session(
            metadata_cache_size_bytes=_CACHE_BYTES, index_cache_size_bytes=_CACHE_BYTES
        )
        self._patience: dict[str, str] = {}
        self._tables: dict[str, Table] = {}
        self._heads: dict[str, LanceDataset] = {}
        self._locks = {name: threading.RLock() for name in TABLES}
        self._zones = {name: Zones() for name in NUMBERED}
        self._closed = False
        self._fenced: FencedError | None = None
        self._pid = os.getpid()
        self.growth: defaultdict[str, Growth] = defaultdict(Growth)
        """Writes to each table by this process."""
        if self._folder is None:
            self._folder = ObjectPrefix(self.location, self._db, read_only=read_only)
            if not read_only:  # the store was there: from now on an owner waits for it
                self._patience = dict(PATIENT)
                del self._db
        if self._folder.may_have_rival and not read_only:
            self._fence()

    def _fence(self) -> None:
        """Restore every table, so that commits of a former owner fail: they build on an older version."""
        try:
            for name in self._stored(TABLES):
                take_over(self.head(name), self.uri(name))
                self.forget(name)
                self.sync(name)
        except BaseException:
            self.close()  # or a repair would find this process as the owner
            raise

    def close(self) -> None:
        """Give up ownership after running writes have ended; later writes are refused. Idempotent."""
        with ExitStack() as locks:
            for lock in self._locks.values():
                locks.enter_context(lock)
            self._closed = True
        if self._folder is not None:
            self._folder.close()

    def uri(self, name: str) -> str:
        """Location of a table's files."""
        return f"{self.location}/{name}.lance"

    @cached_property
    def _db(self) -> DBConnection:
        """LanceDB, for searches and object stores; all else is done by Lance itself, without this import."""
        import lancedb  # 1 s

        with nullcontext() if self.local else reached(self.location):
            return lancedb.connect(
                self.location,
                session=lancedb.Session(
                    metadata_cache_size_bytes=_CACHE_BYTES, index_cache_size_bytes=_CACHE_BYTES
                ),
                storage_options={**_STORAGE_OPTIONS, **self._patience},
                read_consistency_interval=timedelta(0),  # else a reader never sees another process's commits
            )

    def table(self, name: str) -> Any:
        """The LanceDB table, created empty if this store may write; None if absent and read-only."""
        with self._locks[name]:
            if name not in self._tables and self._made(name):
                with damage_named(self.location, name):
                    self._tables[name] = some_columns(self._db.open_table(name))
            return self._tables.get(name)

    def _made(self, name: str) -> bool:
        """Whether a table is there; it is created if this store may write."""
        with self._locks[name]:
            there = name in self._heads or bool(self._stored([name]))
            if not there and not self.read_only:
                create(self.uri(name), name)
                self.sync(name)
            return there or not self.read_only

    def text(self, name: str) -> str | None:
        """A small file beside the tables; None if there is none."""
        if self.local is None:
            return Objects(self.location).text(name)
        path = self.local / name
        return path.read_text() if path.is_file() else None

    def _stored(self, names: Iterable[str]) -> list[str]:
        if self.local is None:
            return sorted(set(names) & set(self._db.list_tables().tables))
        return [name for name in names if not half_made(self.local / f"{name}.lance")]

    def sync(self, name: str) -> None:
        """Under `power`, force all of a table to disk; not needed after an append that succeeded."""
        if self._barrier is not None:
            self._barrier.table(name)

    def head(self, name: str) -> LanceDataset:
        """The newest version of a table as a Lance dataset; this writer's next commit builds on it."""
        import lance

        with self._locks[name]:
            if name not in self._heads:
                self._made(name)
                with damage_named(self.location, name):
                    opened = some_columns(
                        lance.dataset(self.uri(name), storage_options=self._patience, session=self._session)
                    )
                if not self.read_only:
                    check_order(self.location, name, opened)
                if isinstance(self._folder, ObjectPrefix) and not self.read_only:
                    self._folder.check_owner(self._db)  # after opening: a later takeover then conflicts
                self._heads[name] = opened
            return self._heads[name]

    # --- writing -----------------------------------------------------------------------------------

    def add(self, name: str, rows: pa.Table) -> None:
        """Append rows in one commit; when this returns they are as durable as `durability` says.

        Raises: DiskFullError when the disk has no room, FencedError when another writer has taken the
            buffer over; the message says whether anything of the call is stored.
        """
        import lance

        schema, _ = TABLES[name]
        rows = rows.select(schema.names)
        if not rows.schema.equals(schema, check_metadata=True):  # the metadata has the encodings
            rows = rows.cast(schema)
        with self._locks[name], self.committing(name):
            self.check_writable()
            head = self.head(name)
            failpoint("store.write")
            fragments = lance.fragment.write_fragments(
                rows, head, mode="append", data_storage_version=FORMAT, enable_stable_row_ids=True
            )
            if self._barrier is not None:
                self._barrier.data(name, fragments)
            failpoint("store.commit")
            self._heads[name] = written = lance.LanceDataset.commit(
                head, lance.LanceOperation.Append(fragments), read_version=head.version
            )
            if written.version != head.version + 1:
                raise stored_beside(f"table '{name}' of {self.location}")
            failpoint("store.committed")
            if self._barrier is not None:
                self._barrier.commit(name, head.version, written.version)
                failpoint("store.synced")
            self.growth[name].appended(rows.num_rows, head.version)

    def check_writable(self) -> None:
        """Check that this process may write.

        Raises: BusyError if opened read-only; RftError if closed, or in a forked child; FencedError if it was
            taken over.
        """
        if self.read_only:
            raise BusyError(f"buffer {self.location} is open read-only; open it as its owner to write to it.")
        if self._closed or os.getpid() != self._pid:
            what = "is closed" if self._closed else "belongs to the process this one was forked from"
            raise RftError(f"buffer {self.location} {what}; nothing is stored.")
        if self._fenced is not None:
            raise overtaken(f"buffer {self.location} is not this process's any more") from self._fenced
        if isinstance(self._folder, LocalFolder):
            self._folder.check_owner()

    @contextmanager
    def committing(self, name: str) -> Iterator[None]:
        """Commit in a `with` block; a failed commit has an unknown outcome, so the head is forgotten.

        Raises: DiskFullError; FencedError, after which this store writes nothing more.
        """
        try:
            with storage_errors(self.location, name):
                yield
        except BaseException as err:
            self.forget(name)
            if isinstance(err, FencedError):
                self._fenced = err
            raise

    def locked(self, name: str) -> threading.RLock:
        """The lock of a table, for a `with` block without other writers in this process."""
        return self._locks[name]

    def forget(self, name: str) -> None:
        """Drop the cached table and head, after a write with unknown outcome."""
        with self._locks[name]:
            self.forget_head(name)
            self._tables.pop(name, None)

    def forget_head(self, name: str) -> None:
        """Let the next commit open the newest version; readers always do."""
        self._heads.pop(name, None)

    # --- reading -----------------------------------------------------------------------------------

    def count(self, name: str) -> int:
        """Rows in a table; 0 when it does not exist yet."""
        with self._locks[name], damage_named(self.location, name):
            newest = self._newest(name)
            return 0 if newest is None else int(newest.count_rows())

    def rows(self, name: str) -> TableRows:
        """The rows of a table, to be read; nothing is opened before that."""
        return TableRows(self.location, name, partial(self._newest, name), self._zones.get(name))

    def _newest(self, name: str) -> LanceDataset | None:
        """The newest version of a table, also where another process writes to it; None if it is absent."""
        with self._locks[name]:
            if not self._made(name):
                return None
            head = self.head(name)
            others = self.read_only or self._closed  # write to it
            if others and (latest := head.latest_version) != head.version:
                head = self._heads[name] = head.checkout_version(latest)  # `head` may be in use by a thread
            return head
