"""Child processes that can be killed whatever they do: `python -m MODULE FD PARENT ARGUMENT...`.

Parent and child talk over a socket pair. What they say, how long is waited, and whether another child is
started is the business of whoever starts one. Not pebble: its workers answer in pickles, with which a child
that is not trusted could run code in its parent, and what a worker started itself outlives it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import IO

from rft_data.core.logs import say_line
from rft_data.core.process_tree import MARK, kill_descendants, new_mark

_PR_SET_PDEATHSIG = 1
_CHUNK = 1 << 16
_LOOK_MS = 200
_AFTER_S = 1.0
"""How long its last lines are waited for: a process that left its session may hold the pipe open."""


class Child:
    """A running child process, as its parent sees it.

    It leads a session of its own, so Ctrl-C at the terminal does not reach it; with `own_session=False` it
    stays in this process's group. What it starts is killed with it, in any session (`process_tree.py`).
    It ends when the thread that made it does. It may import what this process can.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], object] = say_line,
        own_session: bool = True,
    ) -> None:
        """Start it.

        Args:
            module: what it runs; that calls `connected` first. `arguments`: its further arguments, as text.
            environment: its variables, those of this process if None.
            on_line: called, in a thread, with each line that it writes to stdout or stderr; by default they
                go to our stderr, masked and escaped.
            own_session: see above; False for a child of a process that is itself killed with its group.
        """
        self._own_session = own_session
        self._mark = new_mark()
        self.socket, theirs = socket.socketpair()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        command = ["-P", "-u", "-m", module, theirs.fileno(), os.getpid(), *arguments]
        with theirs:
            self._popen = subprocess.Popen(  # noqa: S603 - a module of ours, no shell
                [sys.executable, *map(str, command)],
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={
                    **(os.environ if environment is None else environment),
                    "PYTHONPATH": path,
                    MARK: self._mark,
                },
                start_new_session=own_session,
            )
        self.pid = self._popen.pid
        self._outgoing, self._received = bytearray(), bytearray()
        self._poll = select.poll()
        self._enough = threading.Event()
        self._reader = threading.Thread(
            target=_read_lines,
            args=(self._popen.stdout, on_line, self._enough),
            name=f"lines-{self.pid}",
            daemon=True,
        )
        self._reader.start()

    def send(self, content: bytes) -> None:
        """Have bytes sent to it while `receive` waits; never waits itself."""
        self._outgoing += content

    def receive(self, end: float) -> bytes:
        """The bytes that came from it next; none once it has hung up.

        Raises: TimeoutError if there is nothing by `end`, in seconds of `time.monotonic`.
        """
        while True:
            self._poll.register(self.socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            # Looks once even past the end: what is there already is not late.
            ready = self._poll.poll(max(0.0, end - time.monotonic()) * 1000)
            if not ready:
                raise TimeoutError(f"process {self.pid} did not answer in time")
            try:
                if ready[0][1] & ~select.POLLOUT:
                    return self.socket.recv(_CHUNK)
                sent = self.socket.send(self._outgoing, socket.MSG_DONTWAIT)
            except ConnectionError:
                return b""
            del self._outgoing[:sent]

    def line(self, deadline_s: float) -> bytes:
        """The next line that came from it, without its end.

        Raises: TimeoutError past `deadline_s`; EOFError if it hung up first.
        """
        end = time.monotonic() + deadline_s
        while (cut := self._received.find(b"\n")) < 0:
            part = self.receive(end)
            if not part:
                raise EOFError(f"process {self.pid} hung up")
            self._received += part
        line = bytes(self._received[:cut])
        del self._received[: cut + 1]
        return line

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it, and what it started in its session, a signal; from any thread.

        SIGKILL also reaches what it started in other sessions.
        """
        if self._popen.returncode is not None:
            return
        if number == signal.SIGKILL:
            self._kill_tree()
        else:
            self._signal(number)

    def wait(self, wait_s: float | None = None) -> int | None:
        """Its exit status, negative for a signal; None if it has not ended within `wait_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(wait_s)
        return None

    def end(self, wait_s: float | None = 0.0) -> int:
        """Wait so long for its end (None: without limit), then kill it and what it started.

        Returns: its exit status.
        """
        self.wait(wait_s)
        self._kill_tree()
        status = self._popen.wait()
        self._reader.join(_AFTER_S)
        self._enough.set()
        self._reader.join()
        return status

    def close(self, wait_s: float = 0.0) -> int:
        """Call `end`, then close the socket; idempotent."""
        if self.socket.fileno() < 0:
            return self._popen.returncode
        status = self.end(wait_s)
        self.socket.close()
        return status

    def _kill_tree(self) -> None:
        self._signal(signal.SIGSTOP)  # so that it starts nothing meanwhile
        kill_descendants(self._mark, self.pid if self._popen.returncode is None else None)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # none is left; on macOS: only zombies
            if self._own_session:
                os.killpg(self.pid, number)
            else:
                self._popen.send_signal(number)  # does nothing once its exit status is known


def how_it_ended(status: int) -> str:
    """An exit status in words: `exit code 3`, or `signal SIGKILL`."""
    if status >= 0:
        return f"exit code {status}"
    known = -status in {number.value for number in signal.Signals}
    return f"signal {signal.Signals(-status).name if known else -status}"


def _read_lines(pipe: IO[bytes], on_line: Callable[[str], object], enough: threading.Event) -> None:
    """Cut what a child writes into lines, however long it goes without ending one.

    Ends with the pipe, or once `enough` is set: a process that left the child's session may hold it open.
    """
    rest, poll = b"", select.poll()
    poll.register(pipe, select.POLLIN)
    with pipe:
        while not enough.is_set():
            if not poll.poll(_LOOK_MS):
                continue
            part = pipe.read(_CHUNK)
            if not part:
                break
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > _CHUNK:
                lines, rest = [*lines, rest], b""
            for line in lines:
                on_line(line.decode("utf-8", "replace").rstrip())
    if rest:
        on_line(rest.decode("utf-8", "replace").rstrip())


# --- in the child ----------------------------------------------------------------------------------


def connected() -> socket.socket:
    """The child's end of the socket pair; from now on the kernel ends this process with its parent.

    More exactly, with the thread that started it, and even if it is stopped. Where the system cannot do that,
    only a parent that is gone already is noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    return end


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=fullname)


def without_pandas() -> None:
    """Let this process do without pandas, which `import lance` imports: 0.17 of its 0.4 s, measured."""
    sys.meta_path.insert(0, _NoPandas())


def limit_memory(more_bytes: int) -> None:
    """Allow this process so much address space beyond what is mapped already, and no core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
