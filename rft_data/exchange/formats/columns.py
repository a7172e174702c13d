"""Arrow columns for JSON rows: which type each column needs, and the columns themselves.

A value without a narrower type (tool schemas, metadata, messages with tool calls) gets Arrow's JSON type,
which `datasets` reads as its feature `Json`, and other readers as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa

from rft_data.core.canonical import json_as_given
from rft_data.core.json_types import JsonObject
from rft_data.exchange.formats.records import RawRow

IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""The Arrow type of an image in `datasets`."""
_CHUNK = 1000


def arrow_type(value: object) -> pa.DataType:
    """The narrowest Arrow type for a JSON value; null for null and for the items of an empty list."""
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
    if isinstance(value, Mapping) and value and all(isinstance(part, str) for part in value.values()):
        return pa.struct([(key, pa.string()) for key in value])
    return pa.json_()


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type that can hold values of both types."""
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
    """The type of a column: text in place of null, for columns that hold only nulls and empty lists."""
    if pa.types.is_null(kind):
        return pa.string()
    return pa.list_(final_type(kind.value_type)) if pa.types.is_list(kind) else kind


def tables(schema: pa.Schema, rows: Iterable[RawRow]) -> Iterator[pa.Table]:
    """Rows as tables of a schema, at most 1,000 rows each."""
    rows = iter(rows)
    while chunk := list(islice(rows, _CHUNK)):
        arrays = [_array(field.type, [row.get(field.name) for row in chunk]) for field in schema]
        yield pa.Table.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    text = _as_text(kind)
    if text.equals(kind):
        return pa.array(values, kind)
    return pa.array([_coded(value, kind) for value in values], text).cast(kind)


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of JSON: Arrow builds JSON columns from text."""
    if isinstance(kind, pa.JsonType):
        return pa.string()
    if pa.types.is_list(kind):
        item = _as_text(kind.value_type)
        return kind if item.equals(kind.value_type) else pa.list_(item)
    return kind


def _coded(value: object, kind: pa.DataType) -> object:
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json_as_given(value)
    if pa.types.is_list(kind) and isinstance(value, Sequence):
        return [_coded(item, kind.value_type) for item in value]
    return value


def features(schema: pa.Schema) -> dict[str, str]:
    """Schema metadata that tells `datasets` its features; without it images would be structs of bytes."""
    by_name = {field.name: _feature(field.type) for field in schema}
    return {"huggingface": json.dumps({"info": {"features": by_name}})}


def _feature(kind: pa.DataType) -> JsonObject:
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
