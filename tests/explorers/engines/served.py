"""vLLM over two devices for tests: its processes are forked, and its steps can be counted out.

vLLM starts them afresh (7 s each to import it); `test_vllm_served.py` does so once. A test that counts steps
does not depend on which process gets the processor.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.explorers.conftest import SERVED_HERE

_LOOK_MS = 10
FORK = multiprocessing.get_context("fork")


class Brake:
    """How many steps an engine core may make; numbers that it shares with the test."""

    free = -1

    def __init__(self) -> None:
        self.left = FORK.Value("i", self.free)
        """Steps until it waits."""
        self.each = FORK.Value("i", self.free)
        """Steps it gets when it goes on after a pause."""

    def taken(self) -> bool:
        """Take one; whether there was one."""
        with self.left.get_lock():
            if self.left.value > 0:
                self.left.value -= 1
                return True
            return bool(self.left.value == self.free)


def served_engine(model_path: Path, **settings: Any) -> Any:
    """A `ServedVllmEngine` over two devices with a `brake`."""
    from explorers.engines.vllm_served import ServedVllmEngine

    settings["options"] = {**json.loads(os.environ[SERVED_HERE]), **settings["options"]}
    brake = Brake()
    with _forked(), _braked(brake):
        engine: Any = ServedVllmEngine(model_path, **settings)
    engine.brake = brake
    return engine


def _told(message_queue: Any) -> type:
    """A reader of vLLM's that sleeps until it is told, where vLLM's spins for a second after each message.

    It may not be told of all, for which vLLM looks every 5 s.
    """
    known: type = message_queue.SpinCondition
    return type(known.__name__, (known,), {"record_read": lambda self: setattr(self, "busy_loop_s", 0.0)})


@contextmanager
def _forked() -> Iterator[None]:
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.engine import coordinator, utils
    from vllm.v1.executor import multiproc_executor

    with pytest.MonkeyPatch.context() as patch:
        for module in (utils, coordinator, multiproc_executor):
            patch.setattr(module, "get_mp_context", lambda: FORK)
        patch.setattr(shm_broadcast, "SpinCondition", _told(shm_broadcast))
        patch.setattr(shm_broadcast, "SHM_READER_RECHECK_INTERVAL_MS", _LOOK_MS)
        yield


def _proves(core: Any) -> bool:
    """Whether it scores the probe of a swap, which may come when all its steps are taken."""
    return any(name.startswith("probe") for name in core.scheduler.requests)


@contextmanager
def _braked(brake: Brake) -> Iterator[None]:
    from vllm.v1.engine.core import EngineCore

    steps = {name: getattr(EngineCore, name) for name in ("step", "step_with_batch_queue")}
    resume = EngineCore.resume_scheduler

    def braked(step: Any) -> Any:
        def braked_step(core: Any) -> Any:
            # a pause is complete after one more step, which samples nothing
            free = core.is_scheduler_paused() or _proves(core)
            return step(core) if free or brake.taken() else ({}, False)

        return braked_step

    def braked_resume(core: Any) -> None:
        brake.left.value = brake.each.value
        resume(core)

    with pytest.MonkeyPatch.context() as patch:
        for name, step in steps.items():
            patch.setattr(EngineCore, name, braked(step))
        patch.setattr(EngineCore, "resume_scheduler", braked_resume)
        yield
