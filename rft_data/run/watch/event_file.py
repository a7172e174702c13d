"""Event files as TensorBoard reads them: scalars only, written without TensorBoard or torch.

A TFRecord file (length, masked CRC-32C, payload, masked CRC-32C) of `Event` protocol buffers; only the five
fields a scalar needs are encoded: wall_time, step, file_version, summary values, session_log.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import IO

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reversed."""
_MASK = 0xA282EAD8
"""Added to a rotated checksum, so that a checksum of data with checksums in it stays a good one."""
_SESSION_START = b"\x08\x01"
"""SessionLog with status START."""


def _table() -> tuple[int, ...]:
    entries = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        entries.append(crc)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


class EventFile:
    """One event file in a folder; a new start of a run writes a new one beside the old."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Create the file. TensorBoard forgets what earlier files say of steps from `first_step` on."""
        folder.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{token_hex(4)}"
        )
        self._file: IO[bytes] = (folder / name).open("xb")
        self._write(0, _bytes(3, b"brain.Event:2"))
        self._write(first_step, _bytes(7, _SESSION_START))
        self._file.flush()

    def add_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write one step's values by tag."""
        values = [_bytes(1, tag.encode()) + _float(2, value) for tag, value in scalars.items()]
        self._write(step, _bytes(5, b"".join(_bytes(1, value) for value in values)))
        self._file.flush()

    def close(self) -> None:
        """Finish the file; idempotent."""
        self._file.close()

    def _write(self, step: int, what: bytes) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + what
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _bytes(tag: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return bytes([tag << 3 | 2]) + _varint(len(payload)) + payload


def _float(tag: int, value: float) -> bytes:
    """A 32-bit float field; what is too large for one is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return bytes([tag << 3 | 5]) + packed
