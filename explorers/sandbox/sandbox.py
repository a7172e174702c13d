"""Runs programs that a model wrote, each in a sandbox of its own, from any thread."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.program import Program, Ran
from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import SandboxError
from rft_data.core.words import SandboxKind

_START_S = 60.0
_SPARE_S = 30.0
"""Beyond a program's own time: for its start and for removing what it left, on a busy machine."""
_END_S = 5.0


class Sandbox:
    """A few child processes that run programs; one is started when a program finds none free."""

    def __init__(
        self, kind: SandboxKind | str, limits: SandboxLimits | None = None, *, at_once: int = 1
    ) -> None:
        """Nothing is started yet.

        Args: kind: what `explorers.sandbox.probe.choose` found. at_once: most programs at a time.
        """
        self.kind = SandboxKind(kind)
        self.limits = limits or SandboxLimits()
        self._free: queue.LifoQueue[_HostProcess | None] = queue.LifoQueue()
        self._at_once = at_once
        for _ in range(at_once):
            self._free.put(None)
        self._lock = threading.Lock()
        self._running: set[_HostProcess] = set()
        self._closed = False

    def run(self, program: Program) -> Ran:
        """Run a program to its end, after others if too many run.

        Raises: SandboxError if it could not be run: that is no fault of the program.
        """
        host = self._free.get()
        try:
            host = host or self._start()
            return host.run(program)
        except BaseException:
            if host is not None:
                self._drop(host)
                host = None
            raise
        finally:
            self._free.put(host)

    def close(self) -> None:
        """End the processes, and programs that run; idempotent."""
        with self._lock:
            self._closed = True
            for host in self._running:
                host.hang_up()
        idle = [self._free.get() for _ in range(self._at_once)]  # a program that ran has ended now
        for one in idle:
            if one is not None:
                self._drop(one)
            self._free.put(None)

    def __enter__(self) -> Sandbox:
        """For `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _start(self) -> _HostProcess:
        host = _HostProcess(self.kind, self.limits)
        with self._lock:
            if not self._closed:
                self._running.add(host)
                return host
        host.close()
        raise SandboxError("a program was given to a sandbox that is closed.")

    def _drop(self, host: _HostProcess) -> None:
        with self._lock:
            self._running.discard(host)
        host.close()


class _HostProcess(Child):
    """A running `explorers.sandbox.host`."""

    def __init__(self, kind: SandboxKind, limits: SandboxLimits) -> None:
        """Start it. Raises: SandboxError if it cannot be."""
        super().__init__("explorers.sandbox.host")
        self._limits = limits
        try:
            self._ask({"kind": kind, "limits": asdict(limits)}, _START_S)
        except SandboxError:
            self.close()
            raise

    def run(self, program: Program) -> Ran:
        """Raises: SandboxError."""
        return Ran.from_json(self._ask(asdict(program), self._limits.seconds + _SPARE_S))

    def hang_up(self) -> None:
        """Make it end its program and itself; from any thread."""
        with suppress(OSError):  # it has hung up itself
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self, wait_s: float = _END_S) -> int:
        """Hang up, and kill it if it does not end."""
        self.hang_up()
        return super().close(wait_s)

    def _ask(self, message: Mapping[str, object], deadline_s: float) -> dict[str, object]:
        self.send(json.dumps(message).encode() + b"\n")
        try:
            answer: dict[str, object] = json.loads(self.line(deadline_s))
        except TimeoutError as err:
            raise SandboxError(f"the process of a sandbox did not answer for {deadline_s:g} s.") from err
        except EOFError as err:
            code = self.wait(_END_S)
            how = "closed its connection" if code is None else f"ended ({how_it_ended(code)})"
            raise SandboxError(f"the process of a sandbox {how}.") from err
        if "error" in answer:
            raise SandboxError(answer["error"])
        return answer
