"""Digests of experiences, over canonical bytes that do not depend on the memory layout of a table.

Columnar: the small columns of all rows are joined in Arrow, and each row is hashed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rft_data.core.codec import one_array
from rft_data.core.schema import EXPERIENCES

UNDIGESTED = frozenset({"seq", "created_at", "digest"})
"""Set by the store or the clock; a retried write may differ in these and is still the same row."""

TRAINED = (
    "group_id",
    "token_ids",
    "prompt_length",
    "action_mask",
    "logprobs",
    "version_min",
    "version_max",
    "version_spans",
    "reward",
    "teacher_logprobs",
)
"""The columns of a leased row that a gradient step may depend on; they have their own half of the digest."""

ROLLOUT = ("member", "turn")
"""Columns that tell the rollouts of a group apart, and order their rows."""

_REST = tuple(name for name in EXPERIENCES.names if name not in UNDIGESTED and name not in TRAINED)
_HEAD = np.dtype([("column", "<u8"), ("size", "<u8")])
_BULKY_BYTES = 1536
"""Mean size from which a column's values are not copied to be hashed."""
_TAGS = {name: xxhash.xxh3_64_intdigest(name.encode()) for name in EXPERIENCES.names}


def row_digests(table: pa.Table) -> list[str]:
    """Two hashes per row (xxh3-64, 16 hex digits each): of the TRAINED columns, and of all others.

    The canonical bytes hashed are, for each column in schema order whose value is not null, the column's
    tag (xxh3-64 of its name), the value's size in bytes and its little-endian bytes. So a nullable column
    that a later schema adds does not change the digests of older rows.
    """
    halves = zip(_hashes(table, TRAINED), _hashes(table, _REST), strict=True)
    return [trained + rest for trained, rest in halves]


def trained_digests(table: pa.Table) -> list[str]:
    """The first half of `row_digests`, from the TRAINED columns alone."""
    return _hashes(table, TRAINED)


def mismatches(rows: pa.Table, *, trained_only: bool = False) -> list[tuple[int, str]]:
    """Place and computed digest of every row that does not match its `digest` column."""
    actual = trained_digests(rows) if trained_only else row_digests(rows)
    stored = rows.column("digest").to_pylist()
    return [(place, digest) for place, digest in enumerate(actual) if not stored[place].startswith(digest)]


def _hashes(table: pa.Table, names: Sequence[str]) -> list[str]:
    if table.num_rows == 0:
        return []
    runs: list[pa.Array] = []
    small: list[pa.Array] = []
    for name in names:
        column = one_array(table.column(name))
        if column.null_count == len(column):
            continue
        value, sizes = _as_binary(column)
        small.append(_heads(name, sizes, column))
        if value.nbytes < _BULKY_BYTES * len(value):
            small.append(value)
        else:  # hashed in place, because joining would copy it
            runs += [_joined(small), value]
            small = []
    runs += [_joined(small)] if small else []
    rows = zip(*map(_pieces, runs), strict=True)
    return [xxhash.xxh3_64_hexdigest(b"".join(row)) for row in rows]


def _joined(parts: list[pa.Array]) -> pa.Array:
    """The parts of each row joined to one value; nulls are skipped."""
    nothing = pa.repeat(pa.scalar(b"", pa.large_binary()), len(parts[0]))  # Arrow drops a row of only nulls
    return pc.binary_join_element_wise(nothing, *parts, nothing[0], null_handling="skip")


def _pieces(values: pa.Array) -> Iterator[memoryview]:
    """The bytes of each value without a copy; empty for a null."""
    plain = values.fill_null(b"") if values.null_count else values
    _, starts, data = plain.buffers()
    ends = np.frombuffer(starts, np.int64)[plain.offset :][: len(plain) + 1].tolist()
    view = memoryview(data)
    # no list, which would start the garbage collector
    return map(view.__getitem__, map(slice, ends[:-1], ends[1:]))


def _heads(name: str, sizes: npt.NDArray[np.int64], column: pa.Array) -> pa.Array:
    """Tag and size of each value; null where the value is null."""
    heads = np.empty(len(sizes), _HEAD)
    heads["column"], heads["size"] = _TAGS[name], sizes
    made = _binary(np.arange(len(sizes) + 1, dtype=np.int64) * _HEAD.itemsize, pa.py_buffer(heads))
    return _with_nulls_from(column, made)


def _as_binary(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Each value's little-endian bytes, and their number."""
    kind = column.type
    if pa.types.is_string(kind):
        _, starts, data = column.buffers()
        offsets = np.frombuffer(starts, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
        return _with_nulls_from(column, _binary(offsets, data)), np.diff(offsets)
    if pa.types.is_list(kind):
        offsets = column.offsets.to_numpy().astype(np.int64)
        if pa.types.is_string(kind.value_type):
            return _joined_texts(column)
        data, width = _flat(column.values)
        made = _binary(offsets * width, data)
        return _with_nulls_from(column, made), np.diff(offsets * width)
    data, width = _flat(column)
    offsets = np.arange(len(column) + 1, dtype=np.int64) * width
    return _with_nulls_from(column, _binary(offsets, data)), np.diff(offsets)


def _joined_texts(column: pa.ListArray) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """A list of strings as its texts with a separator that no valid UTF-8 holds; [] and [""] differ."""
    texts = pa.ListArray.from_arrays(column.offsets, column.values.cast(pa.binary()))
    made = pc.binary_join(texts, b"\xff").cast(pa.large_binary())
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = pc.binary_length(made).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return _with_nulls_from(column, made), sizes + (counts << 40)


def _flat(values: pa.Array) -> tuple[pa.Buffer, int]:
    """Fixed-width values without nulls as one buffer, and the bytes of each; a struct's fields in a row."""
    if pa.types.is_struct(values.type):
        fields = [
            values.field(i).fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
            for i in range(values.type.num_fields)
        ]
        rows = np.ascontiguousarray(
            np.stack(fields, axis=1) if len(values) else np.empty((0, len(fields)), np.int64)
        )
        return pa.py_buffer(rows), 8 * len(fields)
    plain = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
    whole = plain.fill_null(0) if plain.null_count else plain  # fill_null would copy even without nulls
    array = np.ascontiguousarray(whole.to_numpy(zero_copy_only=False))
    return pa.py_buffer(array), array.itemsize


def _binary(offsets: npt.NDArray[np.int64], data: pa.Buffer | None) -> pa.Array:
    ends = pa.py_buffer(np.ascontiguousarray(offsets))
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, ends, data or pa.py_buffer(b"")])


def _with_nulls_from(column: pa.Array, made: pa.Array) -> pa.Array:
    if column.null_count == 0:
        return made
    return pc.if_else(column.is_valid(), made, pa.scalar(None, made.type))
