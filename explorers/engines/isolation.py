"""What keeps an engine in the same process from disturbing a trainer beside it.

Random number streams of its own, and process-wide state put back after a library's start-up changed it.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


class RandomStream:
    """An engine's own place in torch's default generators.

    Started anew at each weight load from the optimizer step behind it, so that a resumed run, whose versions
    go on counting, samples what an uninterrupted one would have.
    """

    def __init__(self, seed: int) -> None:
        """`seed`: of the run."""
        self._seed = seed
        self.restart(0)

    def restart(self, step: int) -> None:
        """Start the stream that belongs to weights `step` optimizer steps old."""
        with torch.random.fork_rng(devices=_devices()):
            entropy = np.random.SeedSequence([self._seed, step]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(entropy))
            self._state = _generators()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw from this stream inside the block; the process's own goes on untouched after it."""
        outside = _generators()
        _set_generators(self._state)
        try:
            yield
        finally:
            self._state = _generators()
            _set_generators(outside)


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Undo what building an engine does to environment, thread count, seeds and garbage collection.

    vLLM's default process group and its no-op `torch.accelerator` functions on a CPU have to stay.
    """
    environment = dict(os.environ)
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    seeds = random.getstate(), np.random.get_state(), _generators()
    try:
        yield
    finally:
        gc.unfreeze()
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        random.setstate(seeds[0])
        np.random.set_state(seeds[1])
        _set_generators(seeds[2])


def _devices() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def _generators() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _devices())]


def _set_generators(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for device, state in zip(_devices(), states[1:], strict=False):
        torch.cuda.set_rng_state(state, device)
