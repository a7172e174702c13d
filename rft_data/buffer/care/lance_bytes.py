"""Reads from the bytes of Lance's files what no API tells: the next row id, and the files of a commit.

Reads the outermost fields of a protobuf message; knows field numbers of Lance's table format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"LANC"
_FOOTER_BYTES = 16
_NEXT_ROW_ID = 14
_APPEND = 100
_FRAGMENTS, _FILES, _PATH = 1, 2, 1


def is_whole(manifest: Path) -> bool:
    """Whether a manifest has its closing bytes (a cheap test; it may still be unreadable)."""
    with manifest.open("rb") as file:
        file.seek(0, 2)
        if file.tell() < _FOOTER_BYTES:
            return False
        file.seek(-len(_MAGIC), 2)
        return file.read() == _MAGIC


def next_row_id(manifest: Path) -> int:
    """The row id that the next appended row gets.

    Raises: ValueError if the bytes are no manifest.
    """
    data = manifest.read_bytes()
    if data[-len(_MAGIC) :] != _MAGIC or len(data) < _FOOTER_BYTES:
        raise ValueError(f"{manifest} is no Lance manifest")
    (start,) = struct.unpack("<Q", data[-16:-8])
    if start + 4 > len(data):
        raise ValueError(f"{manifest} is no Lance manifest")
    (length,) = struct.unpack("<I", data[start : start + 4])
    body = data[start + 4 : start + 4 + length]
    return next(
        (value for number, value in _fields(body) if number == _NEXT_ROW_ID and isinstance(value, int)), 0
    )


def appended_files(transaction: Path) -> list[str] | None:
    """Names of the data files that a transaction appended; None when it did something else, or is damaged."""
    try:
        operations = _messages(transaction.read_bytes(), _APPEND)
        files = [
            path.decode()
            for append in operations
            for fragment in _messages(append, _FRAGMENTS)
            for file in _messages(fragment, _FILES)
            for path in _messages(file, _PATH)
        ]
    except (ValueError, OSError):
        return None
    return files if operations else None


def _messages(data: bytes, number: int) -> list[bytes]:
    return [value for at, value in _fields(data) if at == number and isinstance(value, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message's outermost fields.

    Raises: ValueError if it is none.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"no protobuf message: wire type {kind}")
        if at + length > len(data):
            raise ValueError("a protobuf message is cut off")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a protobuf message is cut off")
