"""The rows of one table, as its newest version holds them; nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rft_data.buffer.faults import damage_named
from rft_data.buffer.few import few_rows, named_numbers, names_few, numbered_rows
from rft_data.buffer.parts import Part, table_parts
from rft_data.buffer.zones import Zones
from rft_data.core.filters import Filter, to_sql
from rft_data.core.named_tables import known_columns, table_schema
from rft_data.core.schema import TABLES

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

BATCH_ROWS, BATCH_BYTES = 1024, 8 << 20
"""Bounds of a batch of `batches`; a row that is larger is a batch of its own."""
_READ_AHEAD_BYTES = 64 << 20
"""Bytes that Lance reads ahead from files; 2 GiB unless told."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Reads one table; each call reads the version that is the newest then."""

    location: str
    """The buffer, for messages."""
    name: str
    newest: Callable[[], LanceDataset | None]
    """Opens the newest version; None when the table does not exist yet."""
    zones: Zones | None
    """The row numbers in each fragment; None for a table without row numbers."""

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Rows in the order they were written."""
        names, empty = self._shape(columns)
        if limit is not None and limit < 1:
            return empty
        with damage_named(self.location, self.name):
            head = self.newest()
            if head is None:
                return empty
            if where is not None and limit is None and names_few(where):
                return self._few(head, names, where).select(names)
            # a scan by Lance itself takes a third of the CPU time of LanceDB's query, measured
            scanner = head.scanner(
                names, self._condition(where), fragments=self._holding(head, where), limit=limit
            )
            return scanner.to_table().select(names)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Like `scan`, in batches of at most BATCH_ROWS and about BATCH_BYTES, so that memory is bounded.

        `offset`: how many rows that match are left out first.
        """
        names, _ = self._shape(columns)
        if limit is not None and limit < 1:
            return
        with damage_named(self.location, self.name):
            head = self.newest()
            if head is None:
                return
            scanner = head.scanner(
                names,
                self._condition(where),
                fragments=self._holding(head, where),
                limit=limit,
                offset=offset,
                batch_size=BATCH_ROWS,
                batch_size_bytes=BATCH_BYTES,
                io_buffer_size=_READ_AHEAD_BYTES,
            )
            for batch in scanner.to_batches():
                yield batch.select(names)

    def large_rows(self, columns: Sequence[str], where: Filter) -> pa.Table:
        """The few rows that a filter names by an id, of which nothing stays in Lance's caches.

        A page of a single row is kept there as metadata, with its value.
        """
        import lance  # 0.4 s: not paid by `rft --help` or `rft recipe validate`

        with damage_named(self.location, self.name):
            head = self.newest()
            if head is None:
                return self._shape(columns)[1]
            session = lance.Session(index_cache_size_bytes=0, metadata_cache_size_bytes=0)
            opened = lance.dataset(head.uri, version=head.version, session=session)
            return few_rows(opened, columns, to_sql(where, TABLES[self.name][0]))

    def parts(self) -> Iterator[Part]:
        """The parts of the newest version, oldest first."""
        with damage_named(self.location, self.name):
            if (head := self.newest()) is not None:
                yield from table_parts(self.location, self.name, head)

    def tail(self, n: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The last n rows written, oldest first; by offset, which needs no index."""
        names, empty = self._shape(columns)
        with damage_named(self.location, self.name):
            head = self.newest()
            total = 0 if head is None else head.count_rows()
            if head is None or total == 0 or n == 0:
                return empty
            return head.take(list(range(max(0, total - n), total)), names)

    def take(self, row_ids: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by stable row id, in the order asked; a row that is not stored is left out."""
        names, empty = self._shape(columns)
        if not len(row_ids):
            return empty
        with damage_named(self.location, self.name):
            if (head := self.newest()) is None:
                return empty
            # half the CPU time of LanceDB's `take_row_ids`, measured; Lance's own `take` knows no row ids
            return head._take_rows(list(row_ids), columns=names)

    def _shape(self, columns: Sequence[str] | None) -> tuple[list[str], pa.Table]:
        names, schema = known_columns(self.name, columns), table_schema(self.name)
        return names, pa.schema([schema.field(n) for n in names]).empty_table()

    def _condition(self, where: Filter | None) -> str | None:
        return None if where is None else to_sql(where, TABLES[self.name][0])

    def _few(self, head: LanceDataset, names: list[str], where: Filter) -> pa.Table:
        chosen = to_sql(where, TABLES[self.name][0])
        numbers = named_numbers(where) if self.name == "experiences" else None
        if numbers and (rows := numbered_rows(head, names, numbers)) is not None:
            return rows
        return few_rows(head, names, chosen, self._holding(head, where))

    def _holding(self, head: LanceDataset, where: Filter | None) -> list[LanceFragment] | None:
        """The fragments in which a filter may find rows; None: all."""
        return None if self.zones is None or where is None else self.zones.holding(head, where)
