"""Bytes inside rows: images and audio go to the `payloads` table, the row keeps `payload:<id>`.

On the way in a row is also reduced to what JSON holds; what JSON cannot hold is refused with its place.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from rft_data.buffer.column_checks import MAX_TEXT_BYTES
from rft_data.core.errors import RowError
from rft_data.exchange.formats.records import Row

MAX_DEPTH = 64
"""Deepest nesting of a row's value; real messages and tool schemas stay below 20."""
REFERENCE = re.compile(r"payload:([0-9a-f]{32})")
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]+)")
_URI_KEYS = frozenset({"url", "image", "image_url", "audio", "data", "file_data"})
"""Where a text is an address, not words; a data URI anywhere else stays text."""
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"%PDF-", "application/pdf"),
)

Store = Callable[[bytes, str], str]


def media_type(data: bytes) -> str:
    """What the first bytes say; `application/octet-stream` when they say nothing."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], "application/octet-stream")
    return "application/octet-stream"


def store_payloads(row: Mapping[str, Any], store: Store) -> tuple[Row, list[str]]:
    """The row as JSON values, its bytes stored and referred to; and the ids of what it refers to.

    Raises: RowError naming the place of a value that JSON cannot hold, or of a text that is too long.
    """
    ids: list[str] = []

    def kept(data: bytes, kind: str) -> str:
        name = store(data, kind)
        if name not in ids:
            ids.append(name)
        return f"payload:{name}"

    made = _plain(row, "", 0, kept)
    return made, ids


def _plain(value: Any, path: str, depth: int, kept: Store) -> Any:
    if isinstance(value, str):
        return _text(value, path, kept)
    if value is None or isinstance(value, bool | int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise RowError(f"{path} is {value}; JSON has no such number")
        return value
    if depth > MAX_DEPTH:
        raise RowError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, bytes):
        return kept(value, media_type(value))
    if isinstance(value, Mapping):
        if "bytes" in value and set(value) <= {"bytes", "path"}:
            return _file(value, path, kept)
        return {
            _key(key, path): _plain(item, f"{path}.{key}" if path else str(key), depth + 1, kept)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[]", depth + 1, kept) for item in value]
    return _named(value, path)


def _named(value: Any, path: str) -> str:
    """Times and decimals as text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    raise RowError(f"{path} is {type(value).__name__}; JSON has no such value")


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise RowError(f"{path} has the key {key!r}; JSON has text keys only")
    if not key.isascii() and key != key.encode(errors="replace").decode():
        raise RowError(f"a key of {path or 'the row'} holds a lone surrogate, which is not valid Unicode")
    return key


def _text(value: str, path: str, kept: Store) -> str:
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
            return kept(base64.b64decode(match[2], validate=True), match[1])
        except binascii.Error as err:
            raise RowError(f"{path} is a data URI whose base64 is broken: {err}") from err
    if size > MAX_TEXT_BYTES:
        raise RowError(f"{path} has {size} bytes; at most {MAX_TEXT_BYTES} are stored in a value")
    return value


def _file(value: Mapping[str, Any], path: str, kept: Store) -> str | None:
    """What `datasets` stores of an image or a sound."""
    data = value["bytes"]
    if data is None and value.get("path") is None:
        return None
    if not isinstance(data, bytes):
        raise RowError(
            f"{path} names the file {value.get('path')!r} but has no bytes; store the bytes in the row"
        )
    return kept(data, media_type(data))


def inline_payloads(value: Any, fetch: Callable[[str], tuple[str, bytes] | None]) -> Any:
    """The value with every reference to a stored payload as a data URI again.

    `fetch` returns None for an id that is not stored: such text only looks like a reference, and stays.
    """
    if isinstance(value, str):
        match = REFERENCE.fullmatch(value)
        found = fetch(match[1]) if match else None
        if found is None:
            return value
        return f"data:{found[0]};base64,{base64.b64encode(found[1]).decode()}"
    if isinstance(value, Mapping):
        return {key: inline_payloads(item, fetch) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [inline_payloads(item, fetch) for item in value]
    return value


def as_file(uri: str) -> dict[str, Any]:
    """A data URI as `datasets` stores an image: its bytes, no path.

    Raises: RowError if it is no data URI.
    """
    match = _DATA_URI.fullmatch(uri)
    if match is None:
        raise RowError("an image is not stored in the buffer; only stored bytes can be written to a table")
    return {"bytes": base64.b64decode(match[2]), "path": None}
