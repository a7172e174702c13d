"""One child process that computes rewards, and can be killed whatever they do.

Lines of JSON over a socket pair; calls are sent ahead and answered in order. It knows no queue and starts
nothing again: that is `reward_pool.py`'s business.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rft_data.core import errors
from rft_data.core.errors import RftError, StalledError
from rft_data.core.rows import Task

START_DEADLINE_S = 120.0
"""For importing and building the rewards."""
_END_S = 5.0
_CHUNK = 1 << 16
_TASK_FIELDS = tuple(field.name for field in fields(Task))


class ChildLost(Exception):
    """The child hung or ended in the first call without an answer; the message is that call's reason."""

    def __init__(self, reason: str, seconds: float, *, late: bool = False) -> None:
        """`seconds`: how long that call took; `late`: the child had not ended by itself."""
        super().__init__(reason)
        self.seconds = seconds
        self.late = late


class RewardProcess:
    """A running child."""

    def __init__(self, components: Sequence[Mapping[str, Any]], memory_bytes: int) -> None:
        """Start it and wait until it has built its rewards.

        It ends with the thread that calls this, so that it never outlives its owner.

        Args:
            components: `{"use": name or import path, "args": {...}}` each.
            memory_bytes: address space it may take beyond what its rewards have mapped once built.

        Raises: what building a reward raised; StalledError past START_DEADLINE_S; RftError if it died.
        """
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "explorers.rewards.reward_child",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C is the owner's; and what a reward starts is killed with it
            )
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._received = bytearray()
        request = {"components": [dict(one) for one in components], "memory_bytes": memory_bytes}
        try:
            answer = next(self.ask([_line(request)], START_DEADLINE_S))
        except ChildLost as lost:
            self.close()
            names = ", ".join(f"'{one['use']}'" for one in components)
            kind = StalledError if lost.late else RftError
            raise kind(
                f"the process for the rewards {names} did not start: it {lost}; its messages are above."
            ) from lost
        if "error" in answer:
            self.close()
            raise getattr(errors, answer["error"], RftError)(answer["message"])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def ask(self, lines: Sequence[bytes], deadline_s: float) -> Iterator[dict[str, Any]]:
        """Send calls and yield their answers, in order.

        Raises: ChildLost when it ends, or one answer takes longer than `deadline_s` after the one before.
        """
        outgoing = memoryview(b"".join(lines))
        for _ in lines:
            end = time.monotonic() + deadline_s
            while (cut := self._received.find(b"\n")) < 0:
                sent = self._exchange(outgoing, end, deadline_s)
                outgoing = outgoing[sent:]
            answer = json.loads(self._received[:cut])
            del self._received[: cut + 1]
            yield answer

    def kill(self) -> None:
        """End it and what it started, at once, from any thread; whoever waits for an answer hears of it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and give up its socket; idempotent."""
        self.kill()
        self._child.wait()
        self._socket.close()

    def _exchange(self, outgoing: memoryview, end: float, deadline_s: float) -> int:
        """Wait until something can be received or sent, and do it; returns how many bytes were sent."""
        self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if outgoing else 0))
        # Looks once even past the end: an answer that is there already is not late.
        ready = self._poll.poll(max(0.0, end - time.monotonic()) * 1000)
        if not ready:
            raise ChildLost(f"took longer than {deadline_s:g} s and was stopped", deadline_s, late=True)
        try:
            if not ready[0][1] & ~select.POLLOUT:
                return self._socket.send(outgoing)
            data = self._socket.recv(_CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            raise ChildLost(self._ending(), deadline_s - (end - time.monotonic()))
        self._received += data
        return 0

    def _ending(self) -> str:
        """How it ended, after it hung up."""
        try:
            code = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended its process (exit code {code})"
        return f"crashed its process ({signal.Signals(-code).name})"


def encode_call(reward: str, task: Task, completion: str) -> bytes:
    """One call as a line."""
    values = {name: getattr(task, name) for name in _TASK_FIELDS}
    return _line({"reward": reward, "task": values, "completion": completion})


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, default=dict).encode() + b"\n"
