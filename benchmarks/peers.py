"""Peers of the buffer: the same rows in SQLite, as columns or pickled, and in an Arrow file.

Every peer stores every field of the rows that the buffer stores, takes rows from as many threads, and writes
each call as one commit, as queue-based RFT systems do.
"""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.rows import ARRAYS
from rft_data.core.digests import TRAINED
from rft_data.core.rows import Experience
from rft_data.core.schema import INCOMING

Values = Sequence[Any]
"""A row as SQLite stores it."""


class SqliteQueue:
    """A table of rows, consumed in order of arrival; WAL, one connection, one commit a call."""

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        encode: Callable[[Experience], Values],
        decode: Callable[[Values], Any],
        *,
        leased: Sequence[str],
        fsync: bool,
    ) -> None:
        """`columns`: name to SQL type, what `encode` makes of a row.

        `leased`: the columns that a lease reads, which `decode` is given.
        `fsync`: whether a commit survives a power cut, or only the death of the process.
        """
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._lock = threading.Lock()
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if fsync else 'OFF'}")
        typed = "".join(f", {name} {kind}" for name, kind in columns.items())
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS rows "
            f"(n INTEGER PRIMARY KEY, id TEXT UNIQUE, consumed INTEGER{typed})"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS waiting ON rows (consumed, n)")
        self._insert = f"INSERT INTO rows VALUES (NULL, ?, 0{', ?' * len(columns)})"  # noqa: S608 - our names
        self._select = f"SELECT n, {', '.join(leased)} FROM rows WHERE consumed = 0 ORDER BY n LIMIT ?"  # noqa: S608
        self._encode, self._decode = encode, decode

    def encoded(self, rows: Sequence[Experience]) -> list[Values]:
        """Rows as `insert` takes them."""
        return [(row.experience_id, *self._encode(row)) for row in rows]

    def insert(self, values: Sequence[Values]) -> None:
        """Store encoded rows in one commit."""
        with self._lock:
            self._db.executemany(self._insert, values)
            self._db.commit()

    def append(self, rows: Sequence[Experience]) -> None:
        """Encode and store rows in one commit."""
        self.insert(self.encoded(rows))

    def lease(self, count: int, *, decode: bool = True) -> list[Any]:
        """The oldest rows not consumed yet, marked as consumed; decoded, or as values."""
        found = self._db.execute(self._select, (count,)).fetchall()
        self._db.executemany("UPDATE rows SET consumed = 1 WHERE n = ?", [(n,) for n, *_ in found])
        self._db.commit()
        return [self._decode(values) for _, *values in found] if decode else found

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def sqlite_pickle(path: Path, *, fsync: bool) -> SqliteQueue:
    """Each row pickled into one blob."""
    return SqliteQueue(
        path,
        {"blob": "BLOB"},
        lambda row: (pickle.dumps(row),),
        lambda values: pickle.loads(values[0]),  # noqa: S301 - the peer's own bytes
        leased=["blob"],
        fsync=fsync,
    )


def sqlite_raw(path: Path, *, fsync: bool) -> SqliteQueue:
    """Each field in a column of its own: arrays as their bytes, what is nested as JSON.

    A lease reads the columns that ours reads.
    """
    names = [name for name in INCOMING.names if name != "experience_id"]
    kinds = {name: "BLOB" if name in ARRAYS else "" for name in names}
    at = {name: TRAINED.index(name) for name in ARRAYS}

    def decode(values: Values) -> dict[str, np.ndarray]:
        return {name: np.frombuffer(values[at[name]], kind) for name, kind in ARRAYS.items()}

    def encode(row: Experience) -> Values:
        return [_raw(row, name) for name in names]

    return SqliteQueue(path, kinds, encode, decode, leased=TRAINED, fsync=fsync)


def _raw(row: Experience, name: str) -> object:
    value = getattr(row, name)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if value is None or isinstance(value, (str, int, float)):
        return value
    return value.timestamp() if name == "created_at" else json.dumps(value)


PEERS: Mapping[str, Callable[..., SqliteQueue]] = {"sqlite raw": sqlite_raw, "sqlite pickle": sqlite_pickle}
"""SQLite's two ways, by the names that figures have."""


class ArrowFile:
    """The floor: record batches appended to one Arrow file, fsync after each."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")
        self._writer = pa.ipc.new_stream(self._file, schema)

    def append(self, table: pa.Table) -> None:
        """One write, one fsync."""
        self._writer.write_table(table)
        self._file.flush()
        os.fsync(self._file.fileno())
