"""Floors that no buffer on Lance and this disk can beat: Lance's own writes and reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import lance
import pyarrow as pa

from rft_data.buffer.durability import Barrier
from rft_data.core.digests import ROLLOUT, TRAINED
from rft_data.core.files import fsync
from rft_data.core.schema import LEASES


class BareTable:
    """A LanceDB table that takes rows as they come: no checks, no digests, no ledger, one commit an `add`."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, *, fsync: bool) -> None:
        """`fsync`: each `add` returns once its files survive a power cut."""
        import lancedb

        options = {"new_table_enable_stable_row_ids": "true", "new_table_data_storage_version": "2.2"}
        self._table = lancedb.connect(str(folder), storage_options=options).create_table(name, schema=schema)
        self._name, self._data = name, folder / f"{name}.lance" / "data"
        self._barrier = Barrier(folder) if fsync else None
        self._synced: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        """One commit."""
        self._table.add(rows)
        if self._barrier is None:
            return
        files = set(os.listdir(self._data))
        for file in files - self._synced:
            fsync(self._data / file)
        fsync(self._data)
        self._synced = files
        version = self._table.version
        self._barrier.commit(self._name, version - 1, version)


class BareLeases:
    """Lance's own part of a lease: the commit of a row, and the read of the leased rows."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of a buffer with experiences, and at least one row of `leases`."""
        self._event = lance.dataset(str(folder / "leases.lance")).to_table(limit=1).cast(LEASES)
        self._head = lance.write_dataset(self._event, folder.with_name("floor"), mode="overwrite")
        self._rows = lance.dataset(str(folder / "experiences.lance"))

    def commit(self) -> None:
        """Append the row of one lease, to the table as it is known: it is not opened again."""
        self._head = lance.write_dataset(self._event, self._head, mode="append")

    def read(self, seqs: Sequence[int]) -> pa.Table:
        """The rows with these numbers; valid while nothing was deleted."""
        return self._rows._take_rows(list(seqs), columns=["seq", *TRAINED, *ROLLOUT, "digest"])
