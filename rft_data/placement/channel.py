"""Messages between a process and its child over a socket: each a number, a length and so many bytes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

HEARTBEAT = 0
"""Number of the message that says only that its sender is alive."""
BEAT_S = 1.0
_HEADER = struct.Struct(">QQ")


def message(number: int, content: bytes = b"") -> bytes:
    """A message as it travels."""
    return _HEADER.pack(number, len(content)) + content


class Messages:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        """Nothing has arrived."""
        self._arrived = bytearray()

    def feed(self, part: bytes) -> Iterator[tuple[int, bytes]]:
        """The (number, content) of each message that `part` completes."""
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
    """The child's end: blocking, and safe to send on from many threads."""

    def __init__(self, end: socket.socket) -> None:
        """`end`: one end of a connected pair."""
        self._socket = end
        self._sending = threading.Lock()

    def send(self, number: int, content: bytes = b"") -> None:
        """Send a message.

        Raises: OSError if nobody listens any more.
        """
        with self._sending:
            self._socket.sendall(message(number, content))

    def received(self) -> Iterator[tuple[int, bytes]]:
        """Messages as they come, until the other end is closed or gone."""
        messages = Messages()
        while part := self._part():
            yield from messages.feed(part)

    def _part(self) -> bytes:
        try:
            return self._socket.recv(1 << 20)
        except OSError:
            return b""
