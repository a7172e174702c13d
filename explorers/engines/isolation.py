"""Keeps an engine from changing the results of a trainer in the same process.

The engine has its own random numbers; process-wide state that a library changes at its start is restored.
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
    """An engine's own state of torch's default generators.

    Each weight load seeds it from the optimizer step of the weights, so a resumed run samples the same tokens
    as a run without a break.
    """

    def __init__(self, seed: int) -> None:
        """`seed`: of the engine."""
        self._seed = seed
        self.restart(0)

    def restart(self, step: int) -> None:
        """Seed the stream for the weights of optimizer step `step`."""
        with torch.random.fork_rng(devices=_devices()):
            entropy = np.random.SeedSequence([self._seed, step]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(entropy))
            self._state = _generators()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw from this stream inside the block, and restore the process's own state after it."""
        outside = _generators()
        _set_generators(self._state)
        try:
            yield
        finally:
            self._state = _generators()
            _set_generators(outside)


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Undo what building an engine changes in environment, thread count, seeds and garbage collection.

    vLLM's default process group stays, and so do its no-op `torch.accelerator` functions on a CPU: it needs
    them. Where the process had frozen objects before, all stay frozen: else each full collection after it
    would look through them again.
    """
    environment = dict(os.environ)
    froze_before = gc.get_freeze_count() > 0
    set_num_threads = torch.set_num_threads
    threads = torch.get_num_threads()
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_states = _generators()
    try:
        yield
    finally:
        if not froze_before:
            gc.unfreeze()
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        _set_generators(torch_states)


def _devices() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def _generators() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _devices())]


def _set_generators(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for device, state in zip(_devices(), states[1:], strict=False):
        torch.cuda.set_rng_state(state, device)
