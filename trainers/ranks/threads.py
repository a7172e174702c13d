"""How many cores a trainer on a CPU uses.

An engine in the same process limits torch to one thread, since vLLM's workers wait in a busy loop. A trainer
raises the number while it works.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in the calling thread, inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def every_core() -> AbstractContextManager[None]:
    """Let torch use every core of this process in the calling thread, inside the block."""
    affinity = getattr(os, "sched_getaffinity", None)
    return torch_threads(len(affinity(0)) if affinity else os.cpu_count() or 1)
