"""Watches one running program: gives it its input, takes its output, and says when it must end."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from explorers.sandbox.box import Running
from rft_data.core.words import ProgramEnd

_CHUNK = 1 << 16
_LOOK_S = 0.05
"""How often its disk use is measured."""
_DRAIN_S = 1.0
"""How long output is read on after it has ended."""


class Watch:
    """The pipes of one program."""

    def __init__(self, running: Running, stdin: bytes, output_bytes: int) -> None:
        """`output_bytes`: most that it may write to stdout, and to stderr."""
        self._running = running
        self._waiting = memoryview(stdin)
        self._most = output_bytes
        self._output = {running.stdout.fileno(): bytearray(), running.stderr.fileno(): bytearray()}
        self._open = set(self._output)
        self._poll = select.poll()
        for end in (*self._output, running.stdin.fileno()):
            os.set_blocking(end, False)
        for end in self._output:
            self._poll.register(end, select.POLLIN)
        self._poll.register(running.stdin, select.POLLOUT)

    @property
    def texts(self) -> tuple[str, str]:
        """The program's stdout and stderr."""
        out, err = (bytes(part[: self._most]).decode("utf-8", "replace") for part in self._output.values())
        return out, err

    def until_over(
        self, ended: int, parent: int, end: float, disk_full: Callable[[], bool]
    ) -> ProgramEnd | None:
        """Serve the pipes until the program ends by itself, or must be killed.

        Args:
            ended: file descriptor that is readable once it has ended. parent: one that is readable once
                whoever asked for this hung up. end: `time.monotonic()` at which it must end.
            disk_full: whether its folder holds too much, asked now and then.
        Returns: why it must be killed; None if it ended by itself.
        Raises: EOFError when the parent hung up.
        """
        self._poll.register(ended, select.POLLIN)
        self._poll.register(parent, select.POLLIN)
        look = time.monotonic() + _LOOK_S
        while (now := time.monotonic()) < end:
            ready = dict(self._poll.poll(max(0.0, min(look, end) - now) * 1000))
            if parent in ready:
                raise EOFError("the parent hung up")
            if ended in ready:
                self._poll.unregister(ended)
                self._poll.unregister(parent)
                return None
            self._serve(ready)
            if self._too_much():
                return ProgramEnd.OUTPUT
            if time.monotonic() >= look:
                if disk_full():
                    return ProgramEnd.DISK
                look = time.monotonic() + _LOOK_S
        return ProgramEnd.TIMEOUT

    def drain(self) -> ProgramEnd | None:
        """Read what is left in the pipes once everything has ended; OUTPUT if that is too much."""
        end = time.monotonic() + _DRAIN_S
        while self._open and time.monotonic() < end and not self._too_much():
            ready = dict(self._poll.poll(_LOOK_S * 1000))
            self._serve(ready)
        return ProgramEnd.OUTPUT if self._too_much() else None

    def close(self) -> None:
        """Close the pipes."""
        for stream in (self._running.stdin, self._running.stdout, self._running.stderr):
            stream.close()

    def _too_much(self) -> bool:
        return any(len(part) > self._most for part in self._output.values())

    def _serve(self, ready: dict[int, int]) -> None:
        for end in self._open & ready.keys():
            self._read(end)
        stdin = self._running.stdin
        if not stdin.closed and stdin.fileno() in ready:
            self._write()

    def _read(self, end: int) -> None:
        try:
            part = os.read(end, _CHUNK)
        except BlockingIOError:
            return
        if part:
            self._output[end] += part
        else:
            self._open.discard(end)
            self._poll.unregister(end)

    def _write(self) -> None:
        stdin = self._running.stdin
        try:
            sent = os.write(stdin.fileno(), self._waiting[:_CHUNK]) if self._waiting else 0
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            sent = len(self._waiting)
        self._waiting = self._waiting[sent:]
        if not self._waiting:
            self._poll.unregister(stdin)
            stdin.close()
