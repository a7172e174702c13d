"""Large blocks of memory, as images on their way to a model need, go back to the system when freed."""

from __future__ import annotations

import ctypes
import os

LARGE = 8 << 20
"""Bytes of the smallest block that goes back at once."""
_M_MMAP_THRESHOLD = -3
_SAID_OTHERWISE = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user sets this."""


def give_back_large_blocks() -> None:
    """Have the allocator of this process do so, where it is glibc's.

    Left alone it keeps freed blocks of up to 32 MiB, for each thread that had one. A block costs page faults
    each time then, so only what needs it asks for it.
    """
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None and not any(name in os.environ for name in _SAID_OTHERWISE):
        setting(_M_MMAP_THRESHOLD, LARGE)
