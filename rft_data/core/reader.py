"""The methods that read a buffer, as a protocol: `Buffer` and the hub's client both have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rft_data.core.filters import Filter

if TYPE_CHECKING:
    import pyarrow as pa


class TableReader(Protocol):
    """Reads the rows of a buffer's tables."""

    def read(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Rows of a table that match a filter, in the order written."""
        ...


class BufferReader(TableReader, Protocol):
    """Reads a buffer in all ways that need no owner."""

    def counts(self) -> Mapping[str, int]:
        """Rows per table."""
        ...

    def batches(
        self, name: str, columns: Sequence[str] | None = None, where: Filter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Like `read`, in batches, so that memory is bounded."""
        ...

    def take(self, seqs: Sequence[int]) -> pa.Table:
        """Experiences by number, in the order asked.

        Raises: IntegrityError if a row is missing or damaged.
        """
        ...
