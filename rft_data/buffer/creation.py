"""Makes a table of a buffer, also where a process was killed while it made one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rft_data.buffer.faults import storage_errors
from rft_data.core.schema import TABLES

if TYPE_CHECKING:
    import lance

FORMAT: Final = "2.2"
"""Version of Lance's data files."""
_KEY_MARK = {b"lance-schema:unenforced-primary-key:position": b"1"}
"""Without it concurrent merges duplicate rows silently."""


def half_made(folder: Path) -> bool:
    """Whether a table's creation was interrupted: it has neither a version nor data."""
    return not any((folder / "_versions").glob("*.manifest")) and not any((folder / "data").glob("*"))


def create(uri: str, name: str) -> None:
    """Create the empty table `name` of a buffer at `uri`, a folder or a place on an object store."""
    schema, key = TABLES[name]
    if "://" not in uri and half_made(Path(uri)):
        shutil.rmtree(uri, ignore_errors=True)
    with storage_errors(str(Path(uri).parent), name):
        create_with(uri, key, schema.empty_table())


def create_with(uri: str, key: str | None, rows: pa.Table) -> lance.LanceDataset:
    """A new table with these rows, in one commit."""
    import lance

    schema = rows.schema
    if key is not None:
        at = schema.get_field_index(key)
        field = schema.field(at)
        schema = schema.set(at, field.with_metadata({**(field.metadata or {}), **_KEY_MARK}))
    return lance.write_dataset(
        rows.cast(schema),
        uri,
        enable_v2_manifest_paths=True,
        data_storage_version=FORMAT,
        enable_stable_row_ids=True,
    )
