"""Children forked from this process, which imports Lance but never uses it: a start costs no import, and no
thread or lock of Lance is copied.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.crash.mutations import MUTATIONS
from benchmarks.crash.orders import Orders
from benchmarks.crash.run_start import FAULT_EXIT, live, own
from rft_data.buffer import maintenance
from rft_data.core import failpoints

COMPACT_EVERY = 4
_KEEP_VERSIONS_S = 0.5


@dataclass(frozen=True)
class Child:
    """A forked process."""

    pid: int

    def wait(self, seconds: float) -> int | None:
        """Its wait status, or None while it still runs after so many seconds."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() >= end:
                return None
            time.sleep(0.002)

    def kill(self) -> int:
        """SIGKILL, unless it has ended already; returns its wait status."""
        os.kill(self.pid, signal.SIGKILL)  # not waited for yet: the number is still its own
        return os.waitpid(self.pid, 0)[1]


def killed(status: int) -> bool:
    """Whether a SIGKILL ended it."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def says_fault(status: int) -> bool:
    """Whether it ended by itself after writing a fault down, which the checker will report."""
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == FAULT_EXIT


def start(work: Callable[[], Any]) -> Child:
    """Run `work` in a child."""
    pid = os.fork()
    if pid:
        return Child(pid)
    try:
        work()
    except BaseException:  # noqa: BLE001 - a forked child must never run its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def start_role(orders: Orders, *, owner: bool, failpoint: tuple[str, int] | None, mutation: str) -> Child:
    """Start a run (`owner` False), or a hub alone, with a failpoint armed at its n-th pass."""

    def work() -> None:
        maintenance.COMPACT_EVERY = COMPACT_EVERY
        maintenance.KEEP_VERSIONS_S = _KEEP_VERSIONS_S
        if mutation:
            MUTATIONS[mutation]()
        role = own if owner else live
        if failpoint is None:
            return role(orders)
        with failpoints.armed(*failpoint, "kill"):
            role(orders)

    return start(work)
