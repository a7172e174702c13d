"""The messages between a hub and its clients: one Arrow Flight exchange per call.

A call is JSON, `{"method", "args", "rows"}`, and Arrow batches with that many rows. The answer is Arrow
batches if its result is rows, and then JSON: `{"result"}` or `{"error", "message"}`. No pickle, no SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa
from pydantic_core import from_json, to_json

from rft_data.core import errors
from rft_data.core.errors import RftError, RowError

MAX_COMMAND_BYTES = 16 << 20
"""Largest JSON part of a call."""
MAX_REQUEST_BYTES = 256 << 20
"""Largest Arrow data of one call."""
_BATCH_BYTES = 8 << 20
"""About the size of one Flight message; gRPC takes no message above 2 GiB."""

ERRORS: Mapping[str, type[RftError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RftError)
}


class TokenError(RftError, PermissionError):
    """A hub refused the token of a call."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """Names the ledger of a call."""

    run_id: str
    attempt: int
    max_uses: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A result that is rows."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class AppendAnswer(TypedDict):
    """The result of the call `append`."""

    seqs: Sequence[int | None]
    """Row number of each row sent; None for a refused one."""
    digests: list[str]
    """Of the rows that were not refused."""
    stored: int
    quarantined: int


def authorization(token: str) -> str:
    """The value of the header `authorization` of every call.

    Raises: TokenError for a token that a header cannot hold.
    """
    if not (token.isascii() and token.isprintable()):
        raise TokenError(
            "a hub's token must be printable ASCII, and this one is not; give it as the hub shows it."
        )
    return f"Bearer {token}"


def encode_call(method: str, args: Mapping[str, object], rows: int) -> bytes:
    """The JSON part of a call that has `rows` rows.

    Raises: RowError if an argument is not a JSON value, or the call is larger than MAX_COMMAND_BYTES.
    """
    try:
        call = to_json({"method": method, "args": args, "rows": rows})
    except ValueError as err:
        raise RowError(f"hub call '{method}' holds a value that JSON cannot carry: {err}") from err
    if len(call) > MAX_COMMAND_BYTES:
        raise RowError(
            f"hub call '{method}' has {len(call)} bytes of JSON; at most {MAX_COMMAND_BYTES} are taken. "
            "Send less in one call."
        )
    return bytes(call)


def decode_call(call: bytes) -> tuple[str, dict[str, object], int]:
    """(method, args, rows) of a call.

    Raises: RowError if the bytes are not a call.
    """
    if len(call) > MAX_COMMAND_BYTES:
        raise RowError(f"a hub call has {len(call)} bytes of JSON; at most {MAX_COMMAND_BYTES} are taken.")
    try:
        parsed = from_json(call)
        return str(parsed["method"]), dict(parsed["args"]), int(parsed["rows"])
    except (ValueError, KeyError, TypeError) as err:
        raise RowError('a hub call is not \'{"method": ..., "args": {...}, "rows": ...}\'.') from err


def encode_result(result: object) -> bytes:
    """The JSON part of an answer with a result."""
    return bytes(to_json({"result": result}))


def encode_error(error: RftError) -> bytes:
    """The JSON part of an answer with an error: its class (RftError if not in ERRORS) and its message."""
    name = type(error).__name__
    return bytes(to_json({"error": name if name in ERRORS else "RftError", "message": str(error)}))


def decode_answer(answer: bytes) -> Any:
    """The result of an answer: any JSON value, which the caller reads as its type.

    Raises: the error, if the answer is one.
    """
    parsed = from_json(answer)
    if "error" in parsed:
        raise ERRORS.get(parsed["error"], RftError)(parsed["message"])
    return parsed["result"]


def check_size(size: int) -> None:
    """Check the Arrow bytes of one call.

    Raises: RowError if they are more than MAX_REQUEST_BYTES.
    """
    if size > MAX_REQUEST_BYTES:
        raise RowError(
            f"one hub call has {size} bytes of rows; at most {MAX_REQUEST_BYTES} are taken. "
            "Send fewer rows at a time."
        )


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


def message_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches to about the size of one message; yields one empty batch if there are no rows."""
    empty = True
    for batch in batches:
        step = max(1, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
            empty = False
    if empty:
        yield pa.RecordBatch.from_pylist([], schema)
