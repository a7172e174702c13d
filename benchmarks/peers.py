"""What the buffer is measured against: the same rows in SQLite, pickled or raw, and in a bare Arrow file.

Each stores one row per experience and commits as it goes, as queue-based RFT systems do.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable, Mapping, Sequence
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


class SqliteQueue:
    """A table of rows, consumed in order of arrival."""

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        encode: Callable[[dict[str, Any]], tuple[Any, ...]],
        decode: Callable[[Sequence[Any]], Any],
    ) -> None:
        """`columns`: name to SQL type, what `encode` makes of a row and `decode` reads back."""
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        typed = "".join(f", {name} {kind}" for name, kind in columns.items())
        self._db.execute(
            f"CREATE TABLE rows (n INTEGER PRIMARY KEY, id TEXT UNIQUE, consumed INTEGER, reward REAL{typed})"
        )
        self._db.execute("CREATE INDEX waiting ON rows (consumed, n)")
        names = ", ".join(columns)
        self._insert = f"INSERT INTO rows VALUES (NULL, ?, 0, ?{', ?' * len(columns)})"  # noqa: S608 - our names
        self._select = f"SELECT n, {names} FROM rows WHERE consumed = 0 ORDER BY n LIMIT ?"  # noqa: S608
        self._encode, self._decode = encode, decode

    def append(self, rows: list[dict[str, Any]]) -> None:
        """One commit."""
        values = [(row["experience_id"], row["reward"], *self._encode(row)) for row in rows]
        self._db.executemany(self._insert, values)
        self._db.commit()

    def lease(self, count: int) -> list[Any]:
        """The oldest rows not consumed yet, marked as consumed."""
        found = self._db.execute(self._select, (count,)).fetchall()
        self._db.executemany("UPDATE rows SET consumed = 1 WHERE n = ?", [(n,) for n, *_ in found])
        self._db.commit()
        return [self._decode(values) for _, *values in found]


def sqlite_pickle(path: Path) -> SqliteQueue:
    """Each row's tensors pickled into one blob."""
    return SqliteQueue(
        path,
        {"blob": "BLOB"},
        lambda row: (pickle.dumps(row),),
        lambda values: pickle.loads(values[0]),  # noqa: S301 - the peer's own bytes
    )


def sqlite_raw(path: Path) -> SqliteQueue:
    """Each token list as its raw bytes in a column of its own: no pickling."""
    lists = {**_TENSORS, "advantages": np.float32, "returns": np.float32}
    return SqliteQueue(
        path,
        {**dict.fromkeys(lists, "BLOB"), "text": "TEXT"},
        lambda row: (*(row[name].numpy().tobytes() for name in lists), row["completion_text"]),
        lambda values: [np.frombuffer(b, kind) for b, kind in zip(values, lists.values(), strict=False)],
    )


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
