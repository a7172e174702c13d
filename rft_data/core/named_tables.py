"""Tables and columns as a caller names them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rft_data.core.errors import RowError, UnknownComponentError
from rft_data.core.lookup import suggest
from rft_data.core.schema import TABLES


def table_schema(table: str) -> pa.Schema:
    """The schema of a buffer's table. Raises: UnknownComponentError when there is none of that name."""
    if table not in TABLES:
        raise UnknownComponentError(
            f"a buffer has no table '{table}';{suggest(table, TABLES)} There are: {', '.join(TABLES)}."
        )
    return TABLES[table][0]


def known_columns(table: str, names: Sequence[str] | None) -> list[str]:
    """Columns of a table, all where none are named.

    Raises: UnknownComponentError when the table has no such column, or there is no such table; RowError when
        one is named twice.
    """
    schema = table_schema(table)
    if names is not None and len(names) > len(set(names)):
        raise RowError(f"a column of table '{table}' is named more than once; name each once.")
    for name in names or ():
        if name not in schema.names:
            raise UnknownComponentError(
                f"table '{table}' has no column '{name}';{suggest(name, schema.names)} "
                f"There are: {', '.join(schema.names)}."
            )
    return list(schema.names if names is None else names)
