"""What crosses between a hub and its clients: one Arrow Flight exchange per call.

A call is JSON, `{"method", "args", "rows"}`, and Arrow batches with that many rows. The answer is Arrow
batches where it brings rows, and last JSON: `{"result"}` or `{"error", "message"}`. No pickle, no SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic_core import from_json, to_json

from rft_data.core import errors
from rft_data.core.errors import RftError, RowError

MAX_COMMAND_BYTES = 16 << 20
"""Largest JSON part of a call."""
MAX_REQUEST_BYTES = 256 << 20
"""Most Arrow data one call may bring."""
_BATCH_BYTES = 8 << 20
"""About the size of one Flight message; gRPC takes no message above 2 GiB."""

ERRORS: Mapping[str, type[RftError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RftError)
}


class TokenError(RftError, PermissionError):
    """A hub refused the token of a call."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class LedgerOf:
    """Which ledger a call is about."""

    run_id: str
    attempt: int
    max_uses: int


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer that is rows."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def authorization(token: str) -> str:
    """The header every call carries.

    Raises: TokenError for a token that no header can hold.
    """
    if not (token.isascii() and token.isprintable()):
        raise TokenError("a hub's token is made of printable ASCII; give the token as the hub shows it.")
    return f"Bearer {token}"


def encode_call(method: str, args: Mapping[str, Any], rows: int) -> bytes:
    """The JSON part of a call that brings `rows` rows.

    Raises: RowError if an argument is no JSON value or the whole is too large.
    """
    try:
        call = to_json({"method": method, "args": args, "rows": rows})
    except ValueError as err:
        raise RowError(f"hub call '{method}' holds a value that JSON cannot carry: {err}") from err
    if len(call) > MAX_COMMAND_BYTES:
        raise RowError(
            f"hub call '{method}' has {len(call)} bytes of JSON; at most {MAX_COMMAND_BYTES} are taken. "
            "Bring less in one call."
        )
    return bytes(call)


def decode_call(call: bytes) -> tuple[str, dict[str, Any], int]:
    """(method, args, rows) of a call.

    Raises: RowError if it is none.
    """
    if len(call) > MAX_COMMAND_BYTES:
        raise RowError(f"a hub call has {len(call)} bytes of JSON; at most {MAX_COMMAND_BYTES} are taken.")
    try:
        parsed = from_json(call)
        return str(parsed["method"]), dict(parsed["args"]), int(parsed["rows"])
    except (ValueError, KeyError, TypeError) as err:
        raise RowError('a hub call is not \'{"method": ..., "args": {...}, "rows": ...}\'.') from err


def encode_result(result: Any) -> bytes:
    """The JSON part of an answer."""
    return bytes(to_json({"result": result}))


def encode_error(error: RftError) -> bytes:
    """The JSON part of an answer that is an error: its class, if it is one of ours, and its message."""
    name = type(error).__name__
    return bytes(to_json({"error": name if name in ERRORS else "RftError", "message": str(error)}))


def decode_answer(answer: bytes) -> Any:
    """The result an answer brings.

    Raises: the error it brings.
    """
    parsed = from_json(answer)
    if "error" in parsed:
        raise ERRORS.get(parsed["error"], RftError)(parsed["message"])
    return parsed["result"]


def check_size(size: int) -> None:
    """Refuse a call that brings too much.

    Raises: RowError.
    """
    if size > MAX_REQUEST_BYTES:
        raise RowError(
            f"one hub call brings {size} bytes of rows; at most {MAX_REQUEST_BYTES} are taken. "
            "Send fewer rows at a time."
        )


def check_form(table: pa.Table) -> None:
    """Refuse Arrow data whose offsets point outside its bytes; whether texts are UTF-8 is for the door.

    Raises: RowError.
    """
    try:
        table.validate(full=True)
        return
    except pa.ArrowInvalid:
        pass  # which column, and is it more than a text that is not UTF-8?
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        bare = column.cast(pa.binary()) if pa.types.is_string(kind) else column
        try:
            bare.validate(full=True)
        except pa.ArrowInvalid as err:
            raise RowError(f"column '{name}' of a hub call is not well formed Arrow data: {err}") from err


def messages_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches as parts of about the size of one message; one empty part if there are no rows."""
    empty = True
    for batch in batches:
        step = max(1, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
            empty = False
    if empty:
        yield pa.RecordBatch.from_pylist([], schema)
