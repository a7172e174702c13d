"""What the buffer is measured against: the same rows in SQLite, pickled or raw, and in a bare Arrow file.

Each stores one row per experience and commits as it goes, as queue-based RFT systems do.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

_TENSORS = {"token_ids": np.int32, "action_mask": np.int8, "logprobs": np.float32}


def as_objects(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as an explorer without Arrow holds them: tensors, a text, scalars."""
    import torch

    columns = {name: table.column(name) for name in (*_TENSORS, "completion_text", "experience_id", "reward")}
    rows = []
    for index in range(table.num_rows):
        row: dict[str, Any] = {
            name: torch.from_numpy(columns[name][index].values.to_numpy(zero_copy_only=False).copy())
            for name in _TENSORS
        }
        row |= {name: columns[name][index].as_py() for name in ("completion_text", "experience_id", "reward")}
        row |= {"prompt_length": 200, "info": {"model_version": 1, "use_count": 0}}
        row |= {name: torch.randn(len(row["token_ids"])) for name in ("advantages", "returns")}
        rows.append(row)
    return rows


class SqlitePickle:
    """SQLite, each row's tensors pickled into one blob, consumed in order of arrival."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE rows (n INTEGER PRIMARY KEY, id TEXT UNIQUE, consumed INTEGER, reward REAL, "
            "blob BLOB)"
        )
        self._db.execute("CREATE INDEX waiting ON rows (consumed, n)")

    def append(self, rows: list[dict[str, Any]]) -> None:
        """One commit."""
        values = [(r["experience_id"], 0, r["reward"], pickle.dumps(r)) for r in rows]
        self._db.executemany("INSERT INTO rows (id, consumed, reward, blob) VALUES (?, ?, ?, ?)", values)
        self._db.commit()

    def lease(self, count: int) -> list[Any]:
        """The oldest rows not consumed yet, marked as consumed."""
        found = self._db.execute(
            "SELECT n, blob FROM rows WHERE consumed = 0 ORDER BY n LIMIT ?", (count,)
        ).fetchall()
        self._db.executemany("UPDATE rows SET consumed = 1 WHERE n = ?", [(n,) for n, _ in found])
        self._db.commit()
        return [pickle.loads(blob) for _, blob in found]  # noqa: S301 - the peer's own bytes


class SqliteRaw:
    """SQLite, each token list as its raw bytes in a column of its own: no pickling."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE rows (n INTEGER PRIMARY KEY, id TEXT UNIQUE, consumed INTEGER, reward REAL, "
            "tokens BLOB, mask BLOB, logprobs BLOB, advantages BLOB, returns BLOB, text TEXT)"
        )
        self._db.execute("CREATE INDEX waiting ON rows (consumed, n)")

    def append(self, rows: list[dict[str, Any]]) -> None:
        """One commit."""
        names = ("token_ids", "action_mask", "logprobs", "advantages", "returns")
        values = [
            (
                r["experience_id"],
                0,
                r["reward"],
                *(r[n].numpy().tobytes() for n in names),
                r["completion_text"],
            )
            for r in rows
        ]
        self._db.executemany("INSERT INTO rows VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        self._db.commit()

    def lease(self, count: int) -> list[Any]:
        """The oldest rows not consumed yet, marked as consumed."""
        found = self._db.execute(
            "SELECT * FROM rows WHERE consumed = 0 ORDER BY n LIMIT ?", (count,)
        ).fetchall()
        self._db.executemany("UPDATE rows SET consumed = 1 WHERE n = ?", [(row[0],) for row in found])
        self._db.commit()
        kinds = (np.int32, np.int8, np.float32, np.float32, np.float32)
        return [[np.frombuffer(b, k) for b, k in zip(row[4:9], kinds, strict=True)] for row in found]


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
