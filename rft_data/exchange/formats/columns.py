"""Arrow columns for JSON rows: which type each column needs, and the columns themselves.

What has no narrower type (tool schemas, metadata, messages with tool calls) is Arrow's JSON type, which
`datasets` reads as its `Json` feature and other readers as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from rft_data.exchange.formats.records import Row

IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""How `datasets` stores an image."""
_CHUNK = 1000


def arrow_type(value: Any) -> pa.DataType:
    """The narrowest Arrow type for a JSON value; null for null, and for the items of an empty list."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int | float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        item = pa.null()
        for part in value:
            item = common_type(item, arrow_type(part))
        return pa.list_(item)
    if value and all(isinstance(part, str) for part in value.values()):
        return pa.struct([(key, pa.string()) for key in value])
    return pa.json_()


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type for values of both types."""
    if pa.types.is_null(other) or one.equals(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(common_type(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other) and set(one.names) == set(other.names):
        return one
    return pa.json_()


def final_type(kind: pa.DataType) -> pa.DataType:
    """The type, with text where nothing but nulls and empty lists came."""
    if pa.types.is_null(kind):
        return pa.string()
    return pa.list_(final_type(kind.value_type)) if pa.types.is_list(kind) else kind


def tables(schema: pa.Schema, rows: Iterable[Row]) -> Iterator[pa.Table]:
    """Rows as tables of a schema, about a thousand rows each."""
    rows = iter(rows)
    while chunk := list(islice(rows, _CHUNK)):
        arrays = [_array(field.type, [row.get(field.name) for row in chunk]) for field in schema]
        yield pa.Table.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    text = _as_text(kind)
    if text.equals(kind):
        return pa.array(values, kind)
    return pa.array([_coded(value, kind) for value in values], text).cast(kind)


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type with JSON as text, which is how Arrow builds it."""
    if isinstance(kind, pa.JsonType):
        return pa.string()
    if pa.types.is_list(kind):
        item = _as_text(kind.value_type)
        return kind if item.equals(kind.value_type) else pa.list_(item)
    return kind


def _coded(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return [_coded(item, kind.value_type) for item in value] if pa.types.is_list(kind) else value


def features(schema: pa.Schema) -> dict[str, str]:
    """Schema metadata that tells `datasets` its features; without it an image is a struct of bytes."""
    by_name = {field.name: _feature(field.type) for field in schema}
    return {"huggingface": json.dumps({"info": {"features": by_name}})}


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if kind.equals(IMAGE):
        return {"_type": "Image"}
    if isinstance(kind, pa.JsonType):
        return {"_type": "Json"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    if pa.types.is_struct(kind):
        return {part.name: _feature(part.type) for part in kind}
    name = {"double": "float64", "float": "float32"}.get(str(kind), str(kind))
    return {"dtype": name, "_type": "Value"}
