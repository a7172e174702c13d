"""The messages between a hub and its clients.

A call is JSON, `{"method", "args", "rows"}`, and, where `rows` is a number, an Arrow stream with that many
rows. The answer is Arrow streams if its result is rows, and then JSON: `{"result"}` or
`{"error", "message"}`. No pickle, no SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
MAX_REQUEST_ROWS = 8192
"""Most rows of one call: each may have to be refused, which costs time and no bytes."""

ERRORS: Mapping[str, type[RftError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RftError)
}


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
    """Digests of the rows that were not refused."""
    stored: int
    quarantined: int


def encode_call(method: str, args: Mapping[str, object], rows: int | None) -> bytes:
    """The JSON part of a call that brings `rows` rows; None: it brings none.

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


def decode_call(call: bytes) -> tuple[str, dict[str, object], int | None]:
    """(method, args, rows) of a call.

    Raises: RowError if the bytes are not a call.
    """
    try:
        parsed = from_json(call)
        rows = parsed["rows"]
        return str(parsed["method"]), dict(parsed["args"]), None if rows is None else int(rows)
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


def check_request(rows: int, size: int) -> None:
    """Check the rows of one call and their bytes.

    Raises: RowError for more than MAX_REQUEST_ROWS or MAX_REQUEST_BYTES.
    """
    if not 0 <= rows <= MAX_REQUEST_ROWS:
        raise RowError(
            f"one hub call has {rows} rows; at most {MAX_REQUEST_ROWS} are taken. Send fewer rows at a time."
        )
    if size > MAX_REQUEST_BYTES:
        raise RowError(
            f"one hub call has {size} bytes of rows; at most {MAX_REQUEST_BYTES} are taken. "
            "Send fewer rows at a time."
        )
