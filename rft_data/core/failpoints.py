"""Named points where a test can kill the process or let a storage call fail; without effect otherwise.

`RFT_FAILPOINT=store.commit:3:kill` kills this process at the third pass of `store.commit`. A name ending
in `*` counts every failpoint that starts so; the action is `kill` (SIGKILL) or `error` (OSError).
Names: explore.started, judge.{begin,annotated,closed}, step.{begin,done}, store.{write,commit,committed,
synced}, append.ack, lease.granted, settle.{consume,consumed}, compact.{merge,merged,cleaned},
publish.{written,renamed,recorded}, checkpoint.{written,sealed}, rank.order, trainer.step,
stage.step, final.written, repair.step, care.put, mirror.{stored,listed}.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rft_data.core.errors import RecipeError


@dataclass
class Failpoint:
    """One armed failpoint."""

    pattern: str
    at: int
    """The pass that fails, 1-based."""
    action: str
    passes: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def hit(self, name: str) -> None:
        """Count a pass; kill or raise if it is the chosen one."""
        matches = name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern
        if not matches:
            return
        with self._lock:
            self.passes += 1
            due = self.passes == self.at
        if due and self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if due:
            raise OSError(errno.EIO, f"failpoint {name}")


def _from_environment() -> Failpoint | None:
    text = os.environ.get("RFT_FAILPOINT", "")
    if not text:
        return None
    pattern, _, rest = text.partition(":")
    at, _, action = rest.partition(":")
    if not at.isdigit() or action not in ("kill", "error"):
        raise RecipeError(f"RFT_FAILPOINT is '{text}'; wanted NAME:PASS:kill or NAME:PASS:error.")
    return Failpoint(pattern, int(at), action)


_armed = _from_environment()


def failpoint(name: str) -> None:
    """Kill the process or raise OSError here, if this failpoint is armed."""
    if _armed is not None:
        _armed.hit(name)


@contextmanager
def armed(pattern: str, at: int, action: str = "error") -> Iterator[Failpoint]:
    """Arm one failpoint in this process for the length of a `with` block."""
    global _armed
    before, _armed = _armed, Failpoint(pattern, at, action)
    try:
        yield _armed
    finally:
        _armed = before
