"""A buffer behind a hub as the page reads it: the methods of a `Buffer` that is open for reading.

Searches by words and by meaning, and operators that are tried, need the buffer's own files; a hub has rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rft_data.core.filters import Filter
from rft_data.core.scratch import check_has_files
from rft_data.placement.hub.client import HubClient


@dataclass(frozen=True, slots=True)
class ShownPart:
    """A table as it is now, in place of the `Part`s that it consists of."""

    client: HubClient
    table: str
    name: str
    """A name that no table with other rows has: rows are only added."""
    rows: int

    def read(self, columns: Sequence[str], where: Filter | None = None) -> pa.Table:
        """Columns of its rows that match a filter."""
        return self.client.read(self.table, columns, where)


class ShownBuffer(HubClient):
    """A client that only reads."""

    read_only = True

    def __init__(self, address: str, token: str) -> None:
        """Prepare; the connection is made by the first call."""
        super().__init__(address, token)
        self.location = address
        self._own = secrets.token_hex(8)

    def parts(self, name: str) -> Iterator[ShownPart]:
        """The table as one part; none where it is empty."""
        if rows := self.counts().get(name, 0):
            yield ShownPart(self, name, f"{self._own}/{name}/{rows}", rows)

    def lance(self, name: str) -> None:
        """Raises: RecipeError: there are no files here to search."""
        check_has_files(self.location)
