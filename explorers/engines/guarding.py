"""Ends the processes of a served engine when their owner dies. vLLM alone would let them run on."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress


def end_with(owner: int, others: Sequence[int]) -> None:
    """From now on end this process with its parent; and with `owner`, `others` too.

    Linux only; elsewhere nothing is done. Args: `owner` and `others`: ids of processes of this machine.
    """
    if not hasattr(os, "pidfd_open"):
        return
    killed = [os.pidfd_open(pid) for pid in others if pid != os.getpid()]
    watched = os.pidfd_open(owner), os.pidfd_open(os.getppid())
    threading.Thread(target=_wait, args=(*watched, killed), name="end-with-owner", daemon=True).start()


def _wait(owner: int, parent: int, killed: Sequence[int]) -> None:
    ended, _, _ = select.select([owner, parent], [], [])
    for other in killed if owner in ended else ():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(other, signal.SIGKILL)
    os._exit(1)
