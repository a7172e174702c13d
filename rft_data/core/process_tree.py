"""The processes that a child process started, whatever session they are in; found on Linux only.

A process belongs to a child when its environment has the child's mark, or the child is among its ancestors.
A process that has neither is not found: it cleared its environment, and its parent has ended.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "RFT_CHILD"
"""Environment variable: the marks of the children that a process descends from, outermost first."""
_PROC = Path("/proc")
_ROUNDS = 100
"""How often we look again for processes that were started while others were killed."""


def new_mark() -> str:
    """The value of MARK for a new child; that of its own children will contain it."""
    return f"{os.environ.get(MARK, '')}/{secrets.token_hex(8)}"


def kill_descendants(mark: str, pid: int | None) -> None:
    """Kill what the child with this mark started; the child itself is spared.

    Args: pid: of the child; None once its exit status was read, when another process may have its id.
    """
    spared, seen = {os.getpid(), pid}, set[int]()
    for _ in range(_ROUNDS):
        found = _descendants(mark, pid) - spared - seen
        if not found:
            return
        for one in found:
            with suppress(ProcessLookupError, PermissionError):  # it has ended; it runs as another user
                os.kill(one, signal.SIGKILL)
        seen |= found


def _descendants(mark: str, pid: int | None) -> set[int]:
    if sys.platform != "linux":
        return set()
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has ended
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            if mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    waiting = [*found, *([] if pid is None else [pid])]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found
