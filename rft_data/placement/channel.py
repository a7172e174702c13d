"""Messages between a process and its child over a socket: each is a number, a length and that many bytes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

HEARTBEAT = 0
"""Number of the empty message that shows that its sender still runs."""
BEAT_S = 1.0
"""Seconds between two of them."""
_HEADER = struct.Struct(">QQ")


def message(number: int, content: bytes = b"") -> bytes:
    return _HEADER.pack(number, len(content)) + content


class Messages:
    """Splits arriving bytes into messages."""

    def __init__(self) -> None:
        """Start without bytes."""
        self._arrived = bytearray()

    def feed(self, part: bytes) -> Iterator[tuple[int, bytes]]:
        """Add bytes; yields the (number, content) of each message that is complete now."""
        self._arrived += part
        while len(self._arrived) >= _HEADER.size:
            number, length = _HEADER.unpack_from(self._arrived)
            end = _HEADER.size + length
            if len(self._arrived) < end:
                return
            content = bytes(memoryview(self._arrived)[_HEADER.size : end])
            del self._arrived[:end]
            yield number, content


class Line:
    """The child's end of the socket. It blocks; many threads may send at once."""

    def __init__(self, end: socket.socket) -> None:
        """`end`: one end of a connected pair."""
        self._socket = end
        self._sending = threading.Lock()

    def send(self, number: int, content: bytes = b"") -> None:
        """Send a message.

        Raises: OSError if the other end is closed.
        """
        with self._sending:
            self._socket.sendall(message(number, content))

    def received(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number, content) of each message as it arrives, until the other end is closed."""
        messages = Messages()
        while part := self._part():
            yield from messages.feed(part)

    def _part(self) -> bytes:
        try:
            return self._socket.recv(1 << 20)
        except OSError:
            return b""
