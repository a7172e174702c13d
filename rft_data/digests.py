"""Digests of experiences, over canonical bytes that do not depend on how Arrow happens to lay a table out."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.rows import canonical_json
from rft_data.schema import EXPERIENCES

UNDIGESTED = frozenset({"seq", "created_at", "digest"})
"""Given by the store or the clock: a retried write may differ in these and is still the same row."""


def row_digests(table: pa.Table) -> list[str]:
    """blake2b-128 over the canonical bytes of every EXPERIENCES column but those in UNDIGESTED.

    Canonical bytes of a row: for each column in schema order its name, then a null marker or the
    length and the little-endian bytes of its value.
    """
    hashes = [hashlib.blake2b(digest_size=16) for _ in range(table.num_rows)]
    for field in EXPERIENCES:
        if field.name in UNDIGESTED:
            continue
        column = table.column(field.name).combine_chunks()
        for hasher, value in zip(hashes, _value_bytes(column), strict=True):
            hasher.update(field.name.encode())
            hasher.update(b"\x00" if value is None else b"\x01" + len(value).to_bytes(8, "little") + value)
    return [hasher.hexdigest() for hasher in hashes]


def _value_bytes(column: pa.Array) -> list[bytes | None]:
    """Each value's little-endian bytes; None for null."""
    kind = column.type
    if pa.types.is_string(kind):
        return [None if v is None else v.encode("utf-8", "surrogatepass") for v in column.to_pylist()]
    if pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type):
        return _list_bytes(column)
    if pa.types.is_list(kind):
        return [None if v is None else canonical_json(v).encode() for v in column.to_pylist()]
    values = column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column
    fixed: npt.NDArray[Any] = values.fill_null(0).to_numpy(zero_copy_only=False)
    valid = column.is_valid().to_pylist()
    return [item.tobytes() if ok else None for item, ok in zip(fixed, valid, strict=True)]


def _list_bytes(column: pa.ListArray) -> list[bytes | None]:
    values = np.ascontiguousarray(column.values.to_numpy(zero_copy_only=False))
    offsets = column.offsets.to_numpy()
    valid = column.is_valid().to_pylist()
    return [
        values[start:end].tobytes() if ok else None
        for start, end, ok in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]
