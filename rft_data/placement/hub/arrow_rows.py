"""Rows as bytes between a hub and a client: an Arrow stream without compression.

What comes from outside is bounded before it is decoded: compressed batches, dictionaries and types other than
the ones expected are refused, since a few of their bytes may stand for very many.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.errors import RowError
from rft_data.core.schema import is_json

BATCH_BYTES = 8 << 20
"""About the size of one frame of an answer."""
MAX_JSON_TEXT = 16 << 20
"""Longest JSON text in a row that is sent to a hub."""
MAX_JSON_BYTES = 64 << 20
"""JSON in all rows of one call."""
_READING = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific, use_threads=False)
_HEADER, _COMPRESSION = 2, 3
"""Places of fields in the flatbuffer tables `Message` and `RecordBatch` of Arrow's format."""


def encoded(rows: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """The rows as one stream."""
    sink = pa.BufferOutputStream(pa.system_memory_pool())  # for the reason in `frames.py`
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return sink.getvalue()


def decoded(stream: pa.Buffer) -> list[pa.RecordBatch]:
    """The batches of a stream that a hub sent."""
    with pa.ipc.open_stream(stream, options=_READING) as reader:
        return list(reader)


def checked(stream: pa.Buffer, wanted: pa.Schema, rows: int) -> pa.Table:
    """The rows of a stream that a client sent.

    Raises: RowError unless it holds `rows` well formed rows of the schema `wanted`, uncompressed.
    """
    try:
        _check_messages(stream)
        batches = []
        with pa.ipc.open_stream(stream, options=_READING) as reader:
            if not reader.schema.equals(wanted):
                raise RowError(f"the rows of a hub call {_difference(reader.schema, wanted)}.")
            for batch in reader:
                batches.append(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as err:
        raise RowError(f"the rows of a hub call are not well formed Arrow data: {err}") from err
    table = pa.Table.from_batches(batches, wanted)
    if table.num_rows != rows:
        raise RowError(f"a hub call says that it has {rows} rows, and brings {table.num_rows}.")
    check_form(table)
    _check_json(table)
    return table


def _check_json(table: pa.Table) -> None:
    """Raises: RowError for more JSON than may be parsed: objects take many times the bytes of their text."""
    total = 0
    for field in filter(is_json, table.schema):
        sizes = pc.binary_length(table.column(field.name).cast(pa.binary()))
        total += pc.sum(sizes).as_py() or 0
        longest = pc.max(sizes).as_py() or 0
        if longest > MAX_JSON_TEXT or total > MAX_JSON_BYTES:
            raise RowError(
                f"column '{field.name}' of a hub call has a JSON text of {longest} bytes, the columns up to "
                f"it {total} bytes of JSON; at most {MAX_JSON_TEXT} and {MAX_JSON_BYTES} are taken."
            )


def _check_messages(stream: pa.Buffer) -> None:
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type not in ("schema", "record batch"):
            raise RowError(f"the rows of a hub call hold a message '{message.type}'; send plain columns.")
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise RowError("the rows of a hub call are compressed; send them without compression.")


def _is_compressed(metadata: memoryview) -> bool:
    """Whether a message of Arrow's format says that the buffers of its batch are compressed."""
    (message,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, message, _HEADER)
    if header is None:
        raise RowError("the rows of a hub call hold a batch without a header.")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION) is not None


def _field(metadata: memoryview, table: int, place: int) -> int | None:
    """Position of a field of a flatbuffer table; None if the table does not have it."""
    (back,) = struct.unpack_from("<i", metadata, table)
    size = struct.unpack_from("<H", metadata, table - back)[0]
    at = 4 + 2 * place
    offset = struct.unpack_from("<H", metadata, table - back + at)[0] if at < size else 0
    return table + offset if offset else None


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    if found.names != wanted.names:
        return f"have columns {found.names}; wanted are {wanted.names}"
    wrong = [
        f"'{f.name}' is {f.type}, not {w.type}"
        for f, w in zip(found, wanted, strict=True)
        if f.type != w.type
    ]
    return f"have other types than wanted: {'; '.join(wrong) or 'nullability'}"


def check_form(table: pa.Table) -> None:
    """Check that no offset of Arrow data points outside its bytes. Whether texts are UTF-8 is checked later.

    Raises: RowError if one does.
    """
    try:
        table.validate(full=True)
        return
    except pa.ArrowInvalid:
        pass  # find the column; a text that is not UTF-8 is no error here
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        bare = column.cast(pa.binary()) if pa.types.is_string(kind) else column
        try:
            bare.validate(full=True)
        except pa.ArrowInvalid as err:
            raise RowError(f"column '{name}' of a hub call is not well formed Arrow data: {err}") from err


def parts(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches to about BATCH_BYTES; yields one empty batch if there are no rows."""
    empty = True
    for batch in batches:
        step = max(1, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
            empty = False
    if empty:
        yield pa.RecordBatch.from_pylist([], schema)
