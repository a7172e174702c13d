"""How many cores a trainer on a CPU uses.

An engine in the same process keeps to one thread (vLLM's workers spin); a trainer takes turns with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def every_core() -> Iterator[None]:
    """Let torch use every core of this process in the calling thread, inside the block."""
    before = torch.get_num_threads()
    affinity = getattr(os, "sched_getaffinity", None)
    torch.set_num_threads(len(affinity(0)) if affinity else os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
