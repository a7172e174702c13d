"""The commits that a repair makes, through pylance: append, delete by row id, replace a fragment's file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.folder import Snapshot
from rft_data.buffer.care.ranges import Numbers, to_ranges

_FORMAT: dict[str, Any] = {"data_storage_version": "2.2", "enable_stable_row_ids": True}
_ONE_FILE: dict[str, Any] = {"max_rows_per_file": 2**40, "max_bytes_per_file": 2**60}
_KEY_MARK = {b"lance-schema:unenforced-primary-key:position": b"1"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANGES_PER_DELETE = 200


def create(path: Path, schema: pa.Schema, key: str | None) -> Any:
    """A new, empty table, as the buffer's store makes them."""
    import lance

    if key is not None:
        at = schema.get_field_index(key)
        field = schema.field(at)
        schema = schema.set(at, field.with_metadata({**(field.metadata or {}), **_KEY_MARK}))
    return lance.write_dataset(schema.empty_table(), str(path), enable_v2_manifest_paths=True, **_FORMAT)


def latest(path: Path) -> Any:
    """The newest version of a table, for writing."""
    import lance

    return lance.dataset(str(path))


def append(dataset: Any, rows: pa.Table) -> Any:
    """Append rows in one commit; returns the new version."""
    import lance

    fragments = lance.fragment.write_fragments(rows, dataset, mode="append", **_FORMAT)
    return lance.LanceDataset.commit(
        dataset, lance.LanceOperation.Append(fragments), read_version=dataset.version
    )


def delete(dataset: Any, row_ids: Numbers | Iterable[int]) -> Any:
    """Delete rows by row id, which reads no data file; the ids of the others stay."""
    ranges = to_ranges(row_ids)
    for start in range(0, len(ranges), _RANGES_PER_DELETE):
        part = ranges[start : start + _RANGES_PER_DELETE]
        dataset.delete(" OR ".join(f"(_rowid >= {first} AND _rowid <= {last})" for first, last in part))
    return dataset


def replace_file(dataset: Any, number: int, rows: pa.Table) -> Any:
    """Give a fragment a new data file with `rows` (its live rows, with `_rowid`); row ids do not change.

    Places of deleted rows are filled with placeholders, which stay deleted.
    """
    import lance

    snapshot = Snapshot(dataset)
    fragment = snapshot.fragments[number]
    scanner = dataset.scanner(columns=[], with_row_id=True, with_row_address=True, fragments=[fragment])
    live = scanner.to_table()
    places = (np.asarray(live.column("_rowaddr")) & 0xFFFFFFFF).astype(np.int64)
    order = {row_id: at for at, row_id in enumerate(rows.column("_rowid").to_pylist())}
    schema = dataset.schema
    plain = rows.select(schema.names).cast(schema)
    source = np.full(fragment.physical_rows, plain.num_rows, np.int64)  # one past the end: the placeholder
    source[places] = [order[row_id] for row_id in live.column("_rowid").to_pylist()]
    filled = pa.concat_tables([plain, placeholders(schema, 1)]).combine_chunks().take(pa.array(source))
    (written,) = lance.fragment.write_fragments(filled, dataset, mode="append", **_FORMAT, **_ONE_FILE)
    meta = fragment.metadata.to_json()
    meta["files"] = written.to_json()["files"]
    return update_fragment(dataset, meta)


def update_fragment(dataset: Any, metadata: dict[str, Any]) -> Any:
    """Commit changed metadata of one fragment."""
    import lance

    changed = lance.FragmentMetadata.from_json(json.dumps(metadata))
    fragments = [
        changed if fragment.fragment_id == changed.id else fragment.metadata
        for fragment in dataset.get_fragments()
    ]
    operation = lance.LanceOperation.Merge(fragments, dataset.lance_schema)
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def placeholders(schema: pa.Schema, n: int) -> pa.Table:
    """Rows that use up row ids and are deleted: null where allowed, else empty or zero, made in 1970."""
    columns = []
    for field in schema:
        if pa.types.is_timestamp(field.type):
            value: Any = _EPOCH
        elif field.nullable:
            value = None
        elif pa.types.is_list(field.type):
            value = []
        elif pa.types.is_string(field.type):
            value = ""
        else:
            value = b"" if pa.types.is_large_binary(field.type) else 0
        columns.append(pa.array([value] * n, field.type))
    return pa.Table.from_arrays(columns, schema=schema)
