"""A connection between a hub and a client: frames, each with its kind and its length, under deadlines.

It is plain TCP, or TLS over it. A connection whose other end is cut off is noticed within _SILENT_S.

The receiver says which kinds it takes and how long each may be; nothing is allocated for a longer one.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from rft_data.core.errors import RowError

_HEAD = struct.Struct(">BQ")
_SILENT_S = 20
"""Longest time that a network may be silent before the connection counts as broken."""
_ASKED_S = 5
"""Seconds of silence after which the other end's machine is asked whether it is there."""
_TOGETHER = 1 << 16
"""Up to so many bytes are sent in one piece with the head before them."""
_LIMIT_SLACK_S = 0.02
"""A wait may last so much longer than its limit: to set one for each TLS record is a call of the system."""


class Kind(IntEnum):
    """Kind of content of a frame."""

    TOKEN = 1
    """A client's token; the first frame of a connection."""
    CALL = 2
    """The JSON part of a call."""
    ROWS = 3
    """Arrow batches: the rows of a call, or some of an answer's."""
    ANSWER = 4
    """The JSON part of an answer, which ends it."""


@dataclass(frozen=True, slots=True)
class Head:
    """The kind and length of a frame that is about to be received."""

    kind: Kind
    size: int


class Channel:
    """One connection; used by one thread at a time."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket; if it is a TLS one, `agree` comes before anything else."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_cuts(connected)
        self._socket = connected
        self._limit_s = connected.gettimeout()

    def agree(self, within_s: float) -> None:
        """Agree on TLS with the client, if this is a TLS connection. Raises: OSError."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._limit(within_s)
            self._socket.do_handshake()

    def send(self, kind: Kind, content: bytes | pa.Buffer, within_s: float) -> None:
        """Send one frame. Raises: OSError (TimeoutError after `within_s`)."""
        view = memoryview(content)
        head = _HEAD.pack(kind, view.nbytes)
        self._limit(max(within_s, 0.001))
        if view.nbytes <= _TOGETHER:
            self._socket.sendall(head + bytes(view))
        else:
            self._socket.sendall(head)
            self._socket.sendall(view)

    def begin(self, kind: Kind, size: int, within_s: float) -> None:
        """Send the head of a frame whose `size` bytes follow with `send_now`. Raises: OSError."""
        self._limit(max(within_s, 0.001))
        self._socket.sendall(_HEAD.pack(kind, size))

    def send_now(self, view: memoryview) -> memoryview:
        """Send what can be sent without waiting; returns the rest, which comes next. Raises: OSError."""
        self._limit(0.0)
        try:
            while view:
                view = view[self._socket.send(view) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        return view

    def wait_for_room(self, within_s: float) -> None:
        """Wait until more can be sent. Raises: TimeoutError after `within_s`."""
        waiting = select.poll()  # `select.select` refuses descriptors from 1,024 on
        waiting.register(self._socket.fileno(), select.POLLOUT)
        if not waiting.poll(max(0.0, 1000 * within_s)):
            raise TimeoutError(f"the other end took nothing for {within_s:g} s")

    def head(self, most: Mapping[Kind, int], begins_s: float | None, within_s: float) -> Head:
        """Receive the head of the next frame.

        Args:
            most: the kinds taken here, with the largest size of each.
            begins_s: longest wait for its first byte; None: any time. within_s: longest wait for the rest.
        Raises: EOFError when the other end closed the connection; RowError for another kind, or a larger
            frame; OSError.
        """
        first = self._received(1, begins_s)
        rest = self._received(_HEAD.size - 1, within_s)
        kind, size = _HEAD.unpack(first.to_pybytes() + rest.to_pybytes())
        if kind not in most:
            raise RowError(
                f"a hub's connection brought a frame of kind {kind}; wanted is one of "
                f"{', '.join(k.name for k in most)}. Use one version of rft-data at both ends."
            )
        if size > most[Kind(kind)]:
            what = "rows" if kind == Kind.ROWS else "JSON"
            raise RowError(
                f"one hub call has {size} bytes of {what}; at most {most[Kind(kind)]} are taken. "
                "Send less at a time."
            )
        return Head(Kind(kind), size)

    def body(self, head: Head, within_s: float) -> pa.Buffer:
        """Receive what follows a head. Raises: EOFError, OSError (TimeoutError after `within_s`)."""
        return self._received(head.size, within_s)

    def _received(self, size: int, within_s: float | None) -> pa.Buffer:
        # Arrow's own pool zeroes huge pages for the first buffer of each thread: 5 ms of CPU, measured
        buffer = pa.allocate_buffer(size, memory_pool=pa.system_memory_pool())
        view, end = memoryview(buffer).cast("B"), None if within_s is None else time.monotonic() + within_s
        while view:
            self._limit(None if end is None else max(end - time.monotonic(), 0.001))
            try:
                count = self._socket.recv_into(view)
            except TimeoutError as err:
                raise _late(view, size) from err
            if not count:
                raise EOFError("the other end closed the connection")
            view = view[count:]
            if view and end is not None and time.monotonic() > end:
                raise _late(view, size)
        return buffer

    def drain(self, within_s: float) -> None:
        """Say that nothing more is sent, then read and drop what the other end sends until it stops.

        Without this, an end that is still sending would not get what was sent last.
        """
        self._shut(socket.SHUT_WR)
        end, dropped = time.monotonic() + within_s, bytearray(_TOGETHER)
        while (left := end - time.monotonic()) > 0:
            self._limit(left)
            if not self._socket.recv_into(dropped):
                return

    def end_reading(self) -> None:
        """Let the thread that waits for a frame find that there is none; what it sends is still sent."""
        self._shut(socket.SHUT_RD)

    def hang_up(self) -> None:
        """End the connection, also under a thread that uses it."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free it; only the thread that uses it may do that. Idempotent."""
        self.hang_up()
        self._socket.close()

    def _limit(self, within_s: float | None) -> None:
        """Let each wait for the other end be at most this long; None: any time."""
        known = self._limit_s
        if known is not None and within_s is not None:
            same = known == within_s or (within_s > _LIMIT_SLACK_S >= known - within_s >= 0)
        else:
            same = known is within_s
        if not same:
            self._socket.settimeout(within_s)
            self._limit_s = within_s

    def _shut(self, how: int) -> None:
        try:
            socket.socket.shutdown(self._socket, how)  # SSLSocket's own would go on without TLS
        except OSError:  # the other end was faster
            return


def _late(left: memoryview, size: int) -> TimeoutError:
    return TimeoutError(f"the last {len(left)} of {size} bytes have not come in time")


def _notice_cuts(connected: socket.socket) -> None:
    """Have the system find out when the other end is gone without a word, where it can."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tries = _SILENT_S // _ASKED_S - 1
    wanted = {
        "TCP_KEEPIDLE": _ASKED_S,
        "TCP_KEEPINTVL": _ASKED_S,
        "TCP_KEEPCNT": tries,
        "TCP_USER_TIMEOUT": 1000 * _SILENT_S,
    }
    for name, value in wanted.items():
        if hasattr(socket, name):  # Linux has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
