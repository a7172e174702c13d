"""Converts rows (dataclasses or mappings) to Arrow tables and back; JSON columns are encoded and decoded.

`schema.py` defines the columns; `rft_data.buffer.validation` checks their values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.core.canonical import canonical_json, json_as_given
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.core.schema import EXPERIENCES, PREFERENCES, TASKS, is_json
from rft_data.core.words import PairSource, RowSource, Split, member

_ORDERED = frozenset({"messages", "tools", "chosen", "rejected"})
"""Kept in the order of their keys, because a chat template renders them in this order."""


def to_table(rows: Sequence[object], schema: pa.Schema) -> pa.Table:
    """Rows (dataclasses or mappings) as a table of `schema`; JSON columns are encoded.

    Columns that the rows lack are left out (seq and digest, which the commit adds).
    Raises: ValueError when a JSON column holds NaN or an infinity, or a text has a lone surrogate;
        TypeError or pa.ArrowException on a wrong type.
    """
    if not rows:
        return schema.empty_table()
    has: Callable[[str], bool] = (
        rows[0].__contains__ if isinstance(rows[0], Mapping) else lambda name: hasattr(rows[0], name)
    )
    present = [field for field in schema if has(field.name)]
    arrays = [_array(field, _values(rows, field.name)) for field in present]
    return pa.Table.from_arrays(arrays, schema=pa.schema(present))


def _values(rows: Sequence[Any], name: str) -> list[Any]:
    if isinstance(rows[0], Mapping):
        return [row[name] for row in rows]
    return [getattr(row, name) for row in rows]


def _array(field: pa.Field, values: list[Any]) -> pa.Array:
    if is_json(field):
        text = json_as_given if field.name in _ORDERED else canonical_json
        values = _json_texts(text, values, field.nullable)
    elif field.name == "version_spans":
        values = [[{"version": v, "start": s, "end": e} for v, s, e in spans] for spans in values]
    elif pa.types.is_list(field.type) and any(isinstance(value, np.ndarray) for value in values):
        return _list_array(field.type, values)
    return pa.array(values, type=field.type)


def _json_texts(text: Callable[[object], str], values: Sequence[object], nullable: bool) -> list[str | None]:
    """Each value as JSON; an object that several rows share is encoded once."""
    made: dict[int, str | None] = {id(None): None} if nullable else {}
    return [made[id(v)] if id(v) in made else made.setdefault(id(v), text(v)) for v in values]


def _list_array(kind: pa.DataType, values: list[Any]) -> pa.ListArray:
    """Lists given as NumPy arrays, without a Python object per element."""
    wanted = np.dtype(kind.value_type.to_pandas_dtype())
    if all(isinstance(v, np.ndarray) and v.dtype == wanted for v in values):
        flat, lengths, mask = pa.array(np.concatenate(values)), list(map(len, values)), None
    else:  # a cast that would lose precision raises
        parts = [pa.array(() if v is None else v).cast(kind.value_type) for v in values]
        flat, lengths = pa.concat_arrays(parts), list(map(len, parts))
        mask = pa.array([v is None for v in values])
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind, mask=mask)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; unlike `combine_chunks`, without a copy if it is one array already."""
    if column.num_chunks == 1:
        return column.chunk(0)
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch with its buffers aligned as Arrow requires.

    Buffers read from a slice of a message or a file may start at any address, and Lance panics on that.
    """
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def is_aligned(table: pa.Table) -> bool:
    """Whether every buffer of a table starts at a multiple of eight bytes."""
    return all(
        buffer is None or buffer.address % 8 == 0
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
    )


def from_table(table: pa.Table, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of a table as mappings, JSON columns decoded, version spans as tuples."""
    decoded = [f.name for f in schema if is_json(f) and f.name in table.column_names]
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in decoded:
            row[name] = None if row[name] is None else json.loads(row[name])
        if "payloads" in row:
            row["payloads"] = tuple(row["payloads"])
        if "version_spans" in row:
            row["version_spans"] = tuple((s["version"], s["start"], s["end"]) for s in row["version_spans"])
    return rows


def to_tasks(table: pa.Table) -> list[Task]:
    """The rows of a TASKS table."""
    rows = from_table(table.drop_columns(["task_id", "created_at"]), TASKS)
    for row in rows:
        row["messages"], row["tags"] = tuple(row["messages"]), tuple(row["tags"])
        row["split"] = member(Split, row["split"])
    return [Task(**row) for row in rows]


def to_experiences(table: pa.Table) -> list[Experience]:
    """The rows of an EXPERIENCES table, without seq and digest."""
    names = [f.name for f in EXPERIENCES if f.name not in ("seq", "digest")]
    rows = from_table(table.select(names), EXPERIENCES)
    for row in rows:
        row["source"] = member(RowSource, row["source"])
    return [Experience(**row) for row in rows]


def to_preferences(table: pa.Table) -> list[PreferencePair]:
    """The rows of a PREFERENCES table."""
    rows = from_table(table.drop_columns(["preference_id"]), PREFERENCES)
    for row in rows:
        row["source"] = member(PairSource, row["source"])
    return [PreferencePair(**row) for row in rows]
