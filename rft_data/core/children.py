"""A child process that ends when the one that started it does, whatever it is at."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, status: int = 1) -> None:
    """Have the kernel end this process with the parent's thread that started it, even if it is stopped.

    Where the system cannot do that, only a parent that is gone already is noticed.
    Args: parent: its process id. status: this process's, if the parent is gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(status)
