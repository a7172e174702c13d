"""Trajectories from their opening to the buffer: what the routes of a capturing server do."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from explorers.capture.capture import Capture, Open
from explorers.capture.store import TASKSET, Given, Stored, TrajectoryStore
from explorers.capture.trajectory import Trajectory
from explorers.engines.vllm_engine import VllmEngine
from rft_data.core.canonical import canonical_json
from rft_data.core.errors import BusyError
from rft_data.core.rows import Task
from rft_data.core.words import Drift, RolloutEnd

log = logging.getLogger(__name__)
T = TypeVar("T")
CLIENT = "client"
"""Author of a reward that comes with an end."""


@dataclass(slots=True)
class _About:
    """The task, the reward and the lock of an open trajectory."""

    task: Task | None
    given: Given | None = None
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)


class Service:
    """All methods are called in one event loop."""

    def __init__(
        self, capture: Capture, store: TrajectoryStore, engine: VllmEngine, *, deadline_s: float
    ) -> None:
        """`deadline_s`: a trajectory without a request for so long is closed."""
        self.capture = capture
        self.deadline_s = deadline_s
        self._store = store
        self._engine = engine
        self._about: dict[str, _About] = {}
        self._closing: set[asyncio.Task[object]] = set()

    @property
    def serves(self) -> bool:
        """Whether the engine is open."""
        return self._engine.is_open

    async def open(self, task: Task | None) -> Trajectory:
        """A new trajectory, which has left a durable trace. Raises: BusyError when no more may be open."""
        trajectory = self.capture.open(self._store.name(secrets.token_hex(8)))
        self._about[trajectory.id] = _About(task)
        opened = self.capture.find(trajectory.id)
        if opened is not None:
            self.capture.count(opened, _task_tokens(task))
        try:
            await self._store.opened(trajectory, task)
        except BaseException:
            self._forget(trajectory.id)
            raise
        return trajectory

    async def look(self, name: str) -> Mapping[str, object] | None:
        """How a trajectory stands; None when nothing is known of it."""
        opened = self.capture.find(name)
        if opened is None:
            stored = await self._store.find(name)
            return None if stored is None else {"id": name, "open": False, **_said(stored)}
        one = opened.trajectory
        return {
            "id": name,
            "open": True,
            "requests": opened.requests,
            "turns": len(list(one.turns)),
            "sampled_tokens": one.sampled,
            "aborted_turns": one.aborted,
            "drift": {str(kind): one.drift[kind] for kind in Drift},
        }

    async def reward(self, name: str, given: Given, author: str) -> Mapping[str, object] | None:
        """Keep a reward until the end of a trajectory, or store it as feedback; either is durable."""
        about = self._about.get(name)
        if about is not None:
            async with about.ending:
                if self.capture.find(name) is not None:
                    await self._store.rewarded(name, about.task, given)
                    about.given = given
                    return {"id": name, "stored": False}
        stored = await self._store.find(name)
        if stored is None or not stored.experience_ids:
            return None
        await self._store.reward_later(stored, given, author)
        return {"id": name, "stored": True, "experience_id": stored.experience_ids[-1]}

    async def end(
        self, name: str, given: Given | None, end: RolloutEnd = RolloutEnd.FINISHED
    ) -> Mapping[str, object] | None:
        """Store a trajectory; what this returns is durable. Asked again, it says the same.

        A reward that a trajectory does not have yet, which the deadline ended, becomes feedback.

        Raises: BusyError while requests are under way; what the buffer raises, and it stays open.
        """
        about, opened = self._about.get(name), self.capture.find(name)
        if about is None or opened is None:
            stored = await self._again(name, given)
        else:
            stored = await self._whole(self._stored(name, about, opened, given, end))
        return None if stored is None else {"id": name, "open": False, **_said(stored)}

    async def abandon(self, name: str, reason: str) -> Mapping[str, object] | None:
        """Forget what was sampled. Raises: BusyError while requests are under way."""
        about, opened = self._about.get(name), self.capture.find(name)
        if about is None or opened is None:
            return None
        why = f"abandoned: {reason}" if reason else "abandoned by its client"
        return await self._whole(self._abandoned(name, about, opened, why))

    async def keep_deadlines(self) -> None:
        """Close what is past its deadline, for ever."""
        while True:
            await asyncio.sleep(min(1.0, self.deadline_s / 4))
            late = time.monotonic() - self.deadline_s
            for one in self.capture:
                if one.trajectory.id in self._about and one.used < late and not one.requests:
                    await self._close_late(one.trajectory.id)

    async def _close_late(self, name: str) -> None:
        try:
            await self.end(name, None, RolloutEnd.DEADLINE)
        except BusyError:  # a request came meanwhile
            pass
        except Exception:  # the others still have deadlines, and this one is tried again
            log.exception("trajectory '%s' is past its deadline and could not be stored", name)

    async def stop(self) -> None:
        """Note what is still open as given up by the server, once what is being stored is."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        for one in self.capture:
            name = one.trajectory.id
            taskset = _taskset(self._about.get(name))
            await self._store.dropped(name, "lost: the server was stopped before it ended", taskset)
            self._forget(name)

    async def _whole(self, work: Coroutine[object, None, T]) -> T:
        """Close a trajectory to the end, also where the request that asked for it is cancelled meanwhile."""
        closing = asyncio.create_task(work)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return await asyncio.shield(closing)

    async def _abandoned(
        self, name: str, about: _About, opened: Open, why: str
    ) -> Mapping[str, object] | None:
        async with about.ending:
            if self.capture.find(name) is None:  # it was ended first, and what was stored stays
                return await self.look(name)
            _check_idle(opened)
            opened.trajectory.closed = True
            try:
                await self._store.dropped(name, why, _taskset(about))
            except BaseException:
                opened.trajectory.closed = False
                raise
            self._forget(name)
        return {"id": name, "open": False}

    async def _stored(
        self, name: str, about: _About, opened: Open, given: Given | None, end: RolloutEnd
    ) -> Stored | None:
        async with about.ending:
            if self.capture.find(name) is None:  # another call ended it meanwhile
                return await self._again(name, given)
            _check_idle(opened)
            opened.trajectory.closed = True
            try:
                stored = await self._store.store(opened.trajectory, about.task, given or about.given, end)
            except BaseException:
                opened.trajectory.closed = False
                raise
            self._forget(name)
            return stored

    async def _again(self, name: str, given: Given | None) -> Stored | None:
        """Rows of a trajectory that has ended, perhaps without the reward that is given now."""
        stored = await self._store.find(name)
        if stored is not None and given is not None and not stored.has(given):
            await self._store.reward_later(stored, given, CLIENT)
        return stored

    def _forget(self, name: str) -> None:
        self._about.pop(name, None)
        if self.capture.find(name) is not None:
            self.capture.close(name)


def _task_tokens(task: Task | None) -> int:
    """About as many as the text of a task has, which is kept until the end."""
    return 0 if task is None else len(canonical_json([task.answer, task.metadata, *task.messages])) // 4


def _taskset(about: _About | None) -> str:
    return TASKSET if about is None or about.task is None else about.task.taskset


def _check_idle(opened: Open) -> None:
    if opened.requests:
        raise BusyError(
            f"{opened.requests} requests of the trajectory are under way; wait for them or cancel them."
        )


def _said(stored: Stored) -> dict[str, object]:
    return {
        "rows": len(stored.experience_ids),
        "experience_ids": list(stored.experience_ids),
        "refused_rows": stored.refused,
    }
