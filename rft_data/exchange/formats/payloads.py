"""Bytes inside rows: images and audio are stored in the table `payloads`, the row keeps `payload:<id>`.

An import also turns every value into JSON here; a value that has no form in JSON is refused with its place.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TypeAlias

from rft_data.buffer.column_checks import MAX_TEXT_BYTES
from rft_data.core.errors import RowError
from rft_data.core.images import REFERENCE, media_type
from rft_data.core.json_types import Json
from rft_data.exchange.formats.records import RawRow, Row

MAX_DEPTH = 64
"""Deepest nesting of a row's value; real messages and tool schemas stay below 20."""
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]+)")
_URI_KEYS = frozenset({"url", "image", "image_url", "audio", "data", "file_data"})
"""Keys whose text is an address. A data URI under any other key stays text."""
Store: TypeAlias = Callable[[bytes, str], str]
"""Stores bytes of a media type; returns their payload id."""
Fetch: TypeAlias = Callable[[str], tuple[str, bytes] | None]
"""(media type, bytes) of a payload id; None for one that is not stored."""


def store_payloads(row: RawRow, store: Store) -> tuple[Row, list[str]]:
    """Store the bytes of a row; returns the row as JSON, with references in their place, and the payload ids.

    Raises: RowError naming the place of a value that JSON cannot hold, or of a text that is too long.
    """
    ids: list[str] = []

    def reference(data: bytes, kind: str) -> str:
        name = store(data, kind)
        if name not in ids:
            ids.append(name)
        return f"payload:{name}"

    return _object(row, "", 0, reference), ids


def _object(value: Mapping[str, object], path: str, depth: int, reference: Store) -> Row:
    return {
        _key(key, path): _plain(item, f"{path}.{key}" if path else str(key), depth + 1, reference)
        for key, item in value.items()
    }


def _plain(value: object, path: str, depth: int, reference: Store) -> Json:
    if isinstance(value, str):
        return _text(value, path, reference)
    if value is None or isinstance(value, bool | int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise RowError(f"{path} is {value}; JSON has no such number")
        return value
    if depth > MAX_DEPTH:
        raise RowError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, bytes):
        return reference(value, media_type(value))
    if isinstance(value, Mapping):
        if "bytes" in value and set(value) <= {"bytes", "path"}:
            return _file(value, path, reference)
        return _object(value, path, depth, reference)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[]", depth + 1, reference) for item in value]
    return _as_text(value, path)


def _as_text(value: object, path: str) -> str:
    """A time or a decimal as text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    raise RowError(f"{path} is {type(value).__name__}; JSON has no such value")


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise RowError(f"{path} has the key {key!r}; JSON has text keys only")
    if not key.isascii() and key != key.encode(errors="replace").decode():
        raise RowError(f"a key of {path or 'the row'} holds a lone surrogate, which is not valid Unicode")
    return key


def _text(value: str, path: str, reference: Store) -> str:
    if not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError as err:
            raise RowError(f"{path} holds a lone surrogate, which is not valid Unicode") from err
    else:
        size = len(value)
    uri = value.startswith("data:") and (path.rpartition(".")[2] in _URI_KEYS or path.startswith("images"))
    match = _DATA_URI.fullmatch(value) if uri else None
    if match is not None:
        try:
            return reference(base64.b64decode(match[2], validate=True), match[1])
        except binascii.Error as err:
            raise RowError(f"{path} is a data URI whose base64 is broken: {err}") from err
    if size > MAX_TEXT_BYTES:
        raise RowError(f"{path} has {size} bytes; at most {MAX_TEXT_BYTES} are stored in a value")
    return value


def _file(value: Mapping[str, object], path: str, reference: Store) -> str | None:
    """The reference to an image or a sound as `datasets` has it; None when both bytes and path are null."""
    data = value["bytes"]
    if data is None and value.get("path") is None:
        return None
    if not isinstance(data, bytes):
        raise RowError(
            f"{path} names the file {value.get('path')!r} but has no bytes; store the bytes in the row"
        )
    return reference(data, media_type(data))


def inline_payloads(row: Row, fetch: Fetch) -> Row:
    """The row with a data URI for every reference to a stored payload.

    A text that only looks like a reference, because its id is not stored, stays.
    """
    return {column: _inlined(value, fetch) for column, value in row.items()}


def _inlined(value: Json, fetch: Fetch) -> Json:
    if isinstance(value, str):
        match = REFERENCE.fullmatch(value)
        found = fetch(match[1]) if match else None
        if found is None:
            return value
        return f"data:{found[0]};base64,{base64.b64encode(found[1]).decode()}"
    if isinstance(value, Mapping):
        return {key: _inlined(item, fetch) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_inlined(item, fetch) for item in value]
    return value


def as_file(uri: object) -> dict[str, bytes | None]:
    """A data URI as `datasets` stores an image: `bytes`, and `path` None.

    Raises: RowError if it is no data URI.
    """
    match = _DATA_URI.fullmatch(uri) if isinstance(uri, str) else None
    if match is None:
        raise RowError("an image is not stored in the buffer; only stored bytes can be written to a table")
    return {"bytes": base64.b64decode(match[2]), "path": None}
