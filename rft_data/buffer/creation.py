"""Makes a table of a buffer, also where a process was killed while it made one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rft_data.buffer.faults import storage_errors
from rft_data.core.schema import TABLES

if TYPE_CHECKING:
    from lancedb.table import LanceTable


def half_made(folder: Path | None) -> bool:
    """Whether a table's creation was interrupted: it has neither a version nor data.

    No folder: the table is on an object store.
    """
    if folder is None:
        return False
    return not any((folder / "_versions").glob("*.manifest")) and not any((folder / "data").glob("*"))


def create(db: Any, location: str, name: str, folder: Path | None) -> Any:
    """Create an empty table of the buffer at `location`."""
    schema, key = TABLES[name]
    if folder is not None and half_made(folder):
        shutil.rmtree(folder, ignore_errors=True)
    with storage_errors(location, name):
        # folders and object stores have tables of this kind only
        table = cast("LanceTable", db.create_table(name, schema=schema))
        if key is not None:
            table.set_unenforced_primary_key(key)  # without it concurrent merges duplicate rows silently
    return table
