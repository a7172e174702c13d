"""The commits of a repair, through pylance: append, delete by row id, replace a fragment's file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rft_data.buffer.care.folder import Snapshot
from rft_data.buffer.care.ranges import Numbers, to_ranges
from rft_data.buffer.creation import FORMAT, create_with
from rft_data.core.failpoints import failpoint
from rft_data.core.json_types import Json

if TYPE_CHECKING:
    import lance

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANGES_PER_DELETE = 200


def step() -> None:
    """Let a test end the repair here: before each change of the disk."""
    failpoint("repair.step")


def create(path: Path, schema: pa.Schema, key: str | None, rows: pa.Table) -> lance.LanceDataset:
    """A new table with rows, made like the buffer makes its tables, in one commit."""
    step()
    return create_with(str(path), key, rows.cast(schema))


def latest(path: Path) -> lance.LanceDataset:
    """The newest version of a table, for writing."""
    import lance

    return lance.dataset(str(path))


def append(dataset: lance.LanceDataset, rows: pa.Table) -> lance.LanceDataset:
    """Append rows in one commit; returns the new version."""
    import lance

    step()
    fragments = lance.fragment.write_fragments(
        rows, dataset, mode="append", data_storage_version=FORMAT, enable_stable_row_ids=True
    )
    step()
    return lance.LanceDataset.commit(
        dataset, lance.LanceOperation.Append(fragments), read_version=dataset.version
    )


def delete(dataset: lance.LanceDataset, row_ids: Numbers | Iterable[int]) -> lance.LanceDataset:
    """Delete rows by row id, which reads no data file; the ids of the others stay."""
    ranges = to_ranges(row_ids)
    for start in range(0, len(ranges), _RANGES_PER_DELETE):
        part = ranges[start : start + _RANGES_PER_DELETE]
        step()
        dataset.delete(" OR ".join(f"(_rowid >= {first} AND _rowid <= {last})" for first, last in part))
    return dataset


def replace_file(dataset: lance.LanceDataset, number: int, rows: pa.Table) -> lance.LanceDataset:
    """Give a fragment a new data file with `rows` (its live rows, with `_rowid`); row ids do not change.

    Row ids stay. Placeholders fill the places of deleted rows, and stay deleted.
    """
    import lance

    snapshot = Snapshot(dataset)
    fragment = snapshot.fragments[number]
    scanner = dataset.scanner(columns=[], with_row_id=True, with_row_address=True, fragments=[fragment])
    stored = scanner.to_table()
    places = (np.asarray(stored.column("_rowaddr")) & 0xFFFFFFFF).astype(np.int64)
    order = {row_id: at for at, row_id in enumerate(rows.column("_rowid").to_pylist())}
    schema = dataset.schema
    plain = rows.select(schema.names).cast(schema)
    source = np.full(fragment.physical_rows, plain.num_rows, np.int64)  # one past the end: the placeholder
    source[places] = [order[row_id] for row_id in stored.column("_rowid").to_pylist()]
    filled = pa.concat_tables([plain, placeholders(schema, 1)]).combine_chunks().take(pa.array(source))
    step()
    (written,) = lance.fragment.write_fragments(
        filled,
        dataset,
        mode="append",
        max_rows_per_file=2**40,
        max_bytes_per_file=2**60,
        data_storage_version=FORMAT,
        enable_stable_row_ids=True,
    )
    meta = fragment.metadata.to_json()
    meta["files"] = written.to_json()["files"]
    return update_fragment(dataset, meta)


def update_fragment(dataset: lance.LanceDataset, metadata: Mapping[str, Json]) -> lance.LanceDataset:
    """Commit changed metadata of one fragment."""
    import lance

    changed = lance.FragmentMetadata.from_json(json.dumps(metadata))
    fragments = [
        changed if fragment.fragment_id == changed.id else fragment.metadata
        for fragment in dataset.get_fragments()
    ]
    step()
    operation = lance.LanceOperation.Merge(fragments, dataset.lance_schema)
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def placeholders(schema: pa.Schema, n: int) -> pa.Table:
    """Rows that use up row ids and are deleted: null where allowed, else empty or zero, made in 1970."""
    columns = []
    for field in schema:
        if pa.types.is_timestamp(field.type):
            value: object = _EPOCH
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
