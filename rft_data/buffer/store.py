"""The LanceDB folder: opens and creates tables as `schema.TABLES` says, and who may write.

Appends and reads only; what rows mean is the buffer's business.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from rft_data.errors import BusyError, IntegrityError, MissingFileError
from rft_data.schema import SCHEMA_VERSION, TABLES

_CACHE_BYTES = 64 << 20
"""Lance's metadata cache grows with every version otherwise (1 GB after 5,000 appends, measured)."""

_STORAGE_OPTIONS = {"new_table_enable_stable_row_ids": "true", "new_table_data_storage_version": "2.2"}


class Store:
    """Tables of one buffer folder; at most one process holds it for writing."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        """Open `root`, creating it unless `read_only`.

        Raises: MissingFileError if it does not exist, BusyError if another process writes to it,
            IntegrityError if it was written under another schema version.
        """
        import lancedb  # 1.5 s: not paid by `rft --help` or `rft recipe validate`

        root = self.root = root.resolve()  # a later chdir or rename must not redirect a writer
        self.read_only = read_only
        marker = root / "schema_version"
        if read_only and not marker.is_file():
            raise MissingFileError(
                f"there is no buffer at {root} (no file 'schema_version' in it); "
                "name the folder of a run's buffer, for example runs/quickstart/buffer."
            )
        self._lock = None if read_only else self._claim()
        if not marker.is_file():
            marker.write_text(f"{SCHEMA_VERSION}\n")
        found = marker.read_text().strip()
        if found != str(SCHEMA_VERSION):
            self.close()
            raise IntegrityError(
                f"buffer {root} has schema version {found}, this package reads {SCHEMA_VERSION}; "
                "open it with the version of rft-data that wrote it."
            )
        session = lancedb.Session(metadata_cache_size_bytes=_CACHE_BYTES, index_cache_size_bytes=_CACHE_BYTES)
        self._db = lancedb.connect(
            str(root),
            session=session,
            storage_options=_STORAGE_OPTIONS,
            read_consistency_interval=timedelta(0),  # else a reader never sees another process's commits
        )
        self._tables: dict[str, Any] = {}

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

    def table(self, name: str) -> Any:
        """The LanceDB table, created empty if this store may write; None if absent and read-only."""
        if name not in self._tables:
            if name in self._db.list_tables().tables:
                self._tables[name] = self._db.open_table(name)
            elif self.read_only:
                return None
            else:
                self._tables[name] = self._create(name)
        return self._tables[name]

    def _create(self, name: str) -> Any:
        schema, key = TABLES[name]
        table = self._db.create_table(name, schema=schema)
        if key is not None:
            table.set_unenforced_primary_key(key)  # without it concurrent merges duplicate rows silently
        return table

    def add(self, name: str, rows: pa.Table) -> None:
        """Append rows in one commit; when this returns they survive a kill of the process."""
        schema, _ = TABLES[name]
        self.table(name).add(rows.select(schema.names).cast(schema))

    def count(self, name: str) -> int:
        """Rows in a table; 0 when it does not exist yet."""
        table = self.table(name)
        return 0 if table is None else int(table.count_rows())

    def scan(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Every row of a table, in the order it was written."""
        schema, _ = TABLES[name]
        names = list(columns) if columns is not None else schema.names
        table = self.table(name)
        if table is None:
            return pa.schema([schema.field(n) for n in names]).empty_table()
        result: pa.Table = table.search().select(names).to_arrow()
        return result.select(names)

    def tail(self, name: str, n: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The last n rows written, oldest first; by offset, which needs no index."""
        schema, _ = TABLES[name]
        names = list(columns) if columns is not None else schema.names
        total = self.count(name)
        if total == 0 or n == 0:
            return pa.schema([schema.field(c) for c in names]).empty_table()
        rows: pa.Table = self.table(name).take_offsets(list(range(max(0, total - n), total))).to_arrow()
        return rows.select(names)

    def take(self, name: str, row_ids: Sequence[int]) -> pa.Table:
        """Rows by stable row id; sorted and without repeats, as Lance returns them."""
        rows: pa.Table = self.table(name).take_row_ids(list(row_ids)).to_arrow()
        return rows
