"""Rewards of every kind that the contract knows; imported by name, as a recipe would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from rft_data import Task, Trajectory, Unscored, UnscoredCause

LETTERS = "0123456789"


def length(task: Task, completion: str, most: float = 100.0) -> float:
    return min(most, float(len(completion)))


async def quick(task: Task, completion: str) -> float:
    await asyncio.sleep(0)
    return float(len(completion))


def tools_used(trajectory: Trajectory) -> dict[str, float]:
    return {"calls": float(len(trajectory.tool_results)), "tokens": float(len(trajectory.token_ids))}


def final_state(task: Task, trajectory: Trajectory) -> float:
    return float(trajectory.environment["score"])


def by_rank(group: list[Trajectory]) -> list[float | Unscored]:
    """The longest answer has the highest rank; an empty one has none."""
    order = sorted(len(one.completion) for one in group)
    return [float(order.index(len(one.completion))) if one.completion else Unscored("empty") for one in group]


async def above_mean(task: Task, rollouts: Sequence[Trajectory]) -> list[float]:
    mean = sum(len(one.completion) for one in rollouts) / len(rollouts)
    return [len(one.completion) - mean for one in rollouts]


def one_too_few(group: list[Trajectory]) -> list[float]:
    return [1.0] * (len(group) - 1)


class Meeting:
    """Answers once so many calls are under way at the same time in one process."""

    def __init__(self, size: int) -> None:
        self._size, self._here, self._all = size, 0, asyncio.Event()

    async def __call__(self, task: Task, completion: str) -> float:
        self._here += 1
        if self._here == self._size:
            self._all.set()
        await self._all.wait()
        return float(self._size)


class Troubled:
    """Does what the completion says, as a coroutine."""

    deadline_s = 0.5

    async def __call__(self, task: Task, completion: str) -> float:
        act, _, path = completion.partition(" ")
        if act == "waits":
            await asyncio.sleep(600)
        if act == "blocks":
            time.sleep(600)
        if act == "dies":
            import os

            os._exit(3)
        if act == "cancelled":
            Path(f"{path}.begun").touch()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                Path(path).touch()
                raise
        if act == "refused":
            raise ConnectionRefusedError("no endpoint")
        return 1.0


class Flaky:
    """Dies of the world the first `times` that it sees a completion, then says how long it is."""

    def __init__(self, folder: str, times: int, cause: str = "infrastructure") -> None:
        self._folder, self._times, self._cause = Path(folder), times, cause

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        seen = self._folder / completion.replace("/", "_")
        before = len(seen.read_text()) if seen.exists() else 0
        seen.write_text("x" * (before + 1))
        if before < self._times:
            return Unscored("the box is gone", UnscoredCause(self._cause))
        return float(len(completion))


def three_things(task: Task, completion: str, answer: str) -> float:
    return 0.0


class Uncallable:
    """No reward at all."""
