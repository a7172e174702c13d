"""The beginning of every hostile program in Python: it is text, put before the program. See hostile.yaml."""

import ctypes
import os
import signal  # noqa: F401
import socket  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401
from collections.abc import Callable

FILE, FOLDER, TCP, UNIX, ABSTRACT, PID, HOME = OUTSIDE  # noqa: F821 - put in its place as values


class _Libc:
    """Functions of libc that raise OSError where they fail."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            result = int(getattr(self._library, name)(*arguments))
            if result == -1:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return result

        return call


libc = _Libc()


def attempt(what: str, act: Callable[[], object]) -> None:
    """Print ESCAPED if the act succeeds and does not return False."""
    try:
        if act() is False:
            return
    except (OSError, ValueError, AttributeError):
        return
    print("ESCAPED", what, flush=True)
