"""A link between explorers and hub that can be cut, and that counts and searches the bytes it passes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

_PART = 1 << 18


class Link:
    """Passes connections on to the hub, until it is cut."""

    def __init__(self, port: int, needles: Sequence[bytes] = ()) -> None:
        """`port`: of the hub on this machine. `needles`: contents that must not be seen."""
        self._target, self._needles = port, needles
        self._longest = max((len(needle) for needle in needles), default=1)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self.passed = 0
        """Bytes, both ways."""
        self.seen = 0
        """Bytes of needles found in them."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._whole = threading.Event()
        self._whole.set()
        self.refuses = True
        """Whether a cut link ends connections; if not, nothing comes through and nobody is told."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, refuses: bool) -> None:
        """Let nothing through any more."""
        self.refuses = refuses
        self._whole.clear()
        if refuses:
            self._end_all()

    def mend(self) -> None:
        """Let new connections through; those of before the cut are gone."""
        self._end_all()
        self._whole.set()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            ending, self._open = self._open, set()
        for one in ending:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if not self._whole.is_set() and self.refuses:
                client.close()
                continue
            hub = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open |= {client, hub}
            for source, sink in ((client, hub), (hub, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        rest = b""
        with suppress(OSError):
            while part := source.recv(_PART):
                if not self._whole.is_set() and not self.refuses:
                    continue  # swallowed
                rest = self._look(rest + part)
                sink.sendall(part)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _look(self, data: bytes) -> bytes:
        """Search; returns the end, in which a needle may have begun."""
        found = sum(data.count(needle) * len(needle) for needle in self._needles)
        keep = data[len(data) - self._longest + 1 :] if self._longest > 1 else b""
        with self._lock:
            self.passed += len(data)
            self.seen += found
        return keep
