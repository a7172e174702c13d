"""A small real role, made in whatever process a placement gives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rft_data.core.errors import DiskFullError, EngineError, RecipeError
from rft_data.core.rows import StepReport, Task


class OwnEngineError(EngineError):
    """An error that only this module knows."""


class Toy:
    def __init__(self, buffer: Any, folder: str | None) -> None:
        self.buffer = buffer
        self.folder = folder
        self.met = asyncio.Event()
        self.held = threading.Event()
        self.total = 0
        self.busy = False

    # --- values

    def add(self, a: int, b: int = 1) -> int:
        self.total += a
        return a + b

    def added(self) -> int:
        return self.total

    def facts(self) -> dict[str, str]:
        names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TOY_SETTING", "TOY_KEPT", "PYTHONPATH")
        found = {name: os.environ.get(name, "") for name in names}
        return {**found, "argv": " ".join(sys.argv), "buffer": type(self.buffer).__name__}

    def pid(self) -> int:
        return os.getpid()

    def turn(self, tasks: list[Task]) -> list[Task]:
        assert all(isinstance(task, Task) for task in tasks)
        return tasks[::-1]

    async def report(self, step: int) -> StepReport:
        return StepReport({"loss": float("nan"), "step": float(step)}, {step: 0.5})

    def promise_broken(self) -> int:
        return "seven"  # type: ignore[return-value]

    def not_plain(self) -> Any:
        return object()

    def repeat(self, text: str, times: int) -> str:
        return text * times

    def rows(self) -> int:
        return int(self.buffer.counts()["experiences"])

    # --- errors

    def full(self) -> None:
        raise DiskFullError("the disk is full")

    async def own(self) -> None:
        raise OwnEngineError("broken engine")

    def zero(self) -> float:
        return 1 / 0

    async def cancels(self) -> None:
        raise asyncio.CancelledError

    def odd(self) -> None:
        raise DiskFullError("file \udc80")

    # --- time

    async def meet(self) -> str:
        await self.met.wait()
        return "met"

    async def release(self) -> None:
        self.met.set()

    def hold(self) -> str:
        assert self.held.wait(60)
        self.held.clear()
        return "held"

    async def let_go(self) -> None:
        self.held.set()

    def alone(self) -> bool:
        others, self.busy = self.busy, True
        time.sleep(0.02)
        self.busy = False
        return not others

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def block(self, seconds: float) -> None:
        time.sleep(seconds)

    def hog(self) -> int:
        return sum(range(10**13))  # one call in C: no other thread of the process runs

    # --- ends

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stdout.write(f"{text} on stdout\n")
        sys.stderr.write("x" * 200_000)
        sys.stderr.write("\n")

    def die(self, code: int) -> None:
        sys.stderr.write("about to die\n")
        os._exit(code)

    def grandchild(self) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    def close(self) -> None:
        if self.folder is not None:
            (Path(self.folder) / "closed").write_text(str(os.getpid()))


class Stubborn(Toy):
    def close(self) -> None:
        time.sleep(600)


def toy(buffer: Any, folder: str | None = None) -> Toy:
    return Toy(buffer, folder)


def stubborn(buffer: Any) -> Toy:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Stubborn(buffer, None)


def refuses(buffer: Any) -> Toy:
    raise RecipeError("no such model")


def breaks(buffer: Any) -> Toy:
    raise KeyError("model")


def dies(buffer: Any) -> Toy:
    sys.stderr.write("dying at birth\n")
    os._exit(9)


def hangs(buffer: Any) -> Toy:
    time.sleep(600)
    raise AssertionError
