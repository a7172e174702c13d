"""The stretches of rows that a table consists of. Rows are added in new parts, and a part never changes.

What was computed from a part holds for every version of the table that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rft_data.buffer.faults import damage_named
from rft_data.core.filters import Filter, to_sql
from rft_data.core.schema import TABLES


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a table, consecutive as they were written."""

    location: str
    """Folder or URL of the buffer."""
    table: str
    name: str
    """A name that no part with other rows has, in any buffer."""
    rows: int
    _version: Any = field(repr=False)
    _fragment: Any = field(repr=False)

    def read(self, columns: Sequence[str], where: Filter | None = None) -> pa.Table:
        """Columns of its rows that match a filter. Raises: IntegrityError if its files are damaged."""
        chosen = None if where is None else to_sql(where, TABLES[self.table][0])
        with damage_named(self.location, self.table):
            scanner = self._version.scanner(list(columns), chosen, fragments=[self._fragment])
            found: pa.Table = scanner.to_table()
        return found


def table_parts(location: str, table: str, version: Any) -> Iterator[Part]:
    """The parts of a version of a table, as a Lance dataset, in the order they were written."""
    for fragment in version.get_fragments():
        files = [file.path for file in fragment.metadata.files]
        removed = [fragment.deletion_file()] if fragment.num_deletions else []
        yield Part(location, table, "+".join([*files, *removed]), fragment.count_rows(), version, fragment)
