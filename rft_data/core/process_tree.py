"""The processes that a child process started, whatever session they are in; found on Linux only.

A process belongs to a child when its environment has the child's mark, or the child is among its ancestors.
A process that has neither is not found: it cleared its environment, and its parent has ended.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "RFT_CHILD"
"""Environment variable: the marks of the children that a process descends from, outermost first."""
_PROC = Path("/proc")
_ROUNDS = 100
"""How often we look again for processes that were started while others were killed."""
_STARTING_S = 0.02
"""How long a process that is being started is given until we look again."""
_KERNEL_THREAD = 0x00200000
"""Flag of a thread of the kernel, which never has an environment."""


def new_mark() -> str:
    """The value of MARK for a new child; that of its own children will contain it."""
    return f"{os.environ.get(MARK, '')}/{secrets.token_hex(8)}"


def kill_descendants(mark: str, pid: int | None) -> None:
    """Kill what the child with this mark started; the child itself is spared.

    Args: pid: of the child; None once its exit status was read, when another process may have its id.
    """
    spared, seen = {os.getpid(), pid}, set[int]()
    for _ in range(_ROUNDS):
        found, is_starting = _descendants(mark, pid)
        found -= spared | seen
        if not found and not is_starting:
            return
        if not found:
            time.sleep(_STARTING_S)
        for one in found:
            with suppress(ProcessLookupError, PermissionError):  # it has ended; it runs as another user
                os.kill(one, signal.SIGKILL)
        seen |= found


def _descendants(mark: str, pid: int | None) -> tuple[set[int], bool]:
    """Their ids, and whether there is a process that has no environment yet, because it is being started."""
    if sys.platform != "linux":
        return set(), False
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    is_starting = False
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has ended
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            environment = (entry / "environ").read_bytes()
            if mark.encode() in environment:
                found.add(int(entry.name))
            is_starting |= not environment and _is_amid_exec(fields)
    waiting = [*found, *([] if pid is None else [pid])]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found, is_starting


def _is_amid_exec(stat: list[bytes]) -> bool:
    """Whether a process has a new address space whose environment the kernel has not written yet.

    Args: stat: fields of /proc/PID/stat from the third on (man 5 proc_pid_stat).
    """
    state, flags, environment_end = stat[0], int(stat[6]), int(stat[48])
    return state not in (b"Z", b"X") and not flags & _KERNEL_THREAD and environment_end == 0
