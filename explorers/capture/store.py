"""Stores the trajectories of a server: their rows, the ends without rows, and rewards that come later."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from explorers.capture.journal import Journal
from explorers.capture.trajectory import Trajectory
from explorers.rewards.unscored import reason_text
from rft_data.buffer.appended import Appended
from rft_data.core.errors import RowError
from rft_data.core.filters import Compare, Filter
from rft_data.core.rows import Experience, Feedback, Task
from rft_data.core.words import FeedbackKey, GroupOutcome, RolloutEnd, RowSource, UnscoredCause
from rft_data.core.workflow import RolloutContext, Unscored

EXPLORER = "serve"
"""`explorer_id` of the rows."""
TASKSET = "served"
"""Taskset of a trajectory that was opened without one."""
T = TypeVar("T")
_THREADS = 8


class ServedBuffer(Protocol):
    """The buffer methods that this module calls."""

    def append(self, rows: Sequence[Experience]) -> Appended:
        """Store rows; returns when they are durable."""
        ...

    def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Store new tasks."""
        ...

    def add_feedback(self, feedback: Sequence[Feedback]) -> int:
        """Store feedback about stored rows."""
        ...

    def add_rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Store rows of a table."""
        ...

    def read(self, name: str, columns: Sequence[str] | None = None, where: Filter | None = None) -> pa.Table:
        """Rows of a table."""
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """A reward that a client gave."""

    value: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored rows of a trajectory."""

    experience_ids: tuple[str, ...]
    """Ids of its rows, in their order; the last one has the reward."""
    refused: int = 0
    """Rows that validation refused."""
    reward: float | None = None
    """Reward of its last row."""

    def has(self, given: Given) -> bool:
        """Whether a reward is the one that is stored."""
        return self.reward is not None and math.isclose(self.reward, given.value, rel_tol=1e-6)


class TrajectoryStore:
    """Writes to the buffer in threads; callers are in one event loop."""

    def __init__(self, buffer: ServedBuffer, journal: Journal, run_id: str) -> None:
        """Type what an earlier process left open as lost, unless it had stored it."""
        self._buffer = buffer
        self._journal = journal
        self._run_id = run_id
        self._threads = ThreadPoolExecutor(_THREADS, "serve-store")
        self._next = self._first_ordinal()
        self.lost = [name for name in journal.left if not self._trajectory_rows(name)]
        for name in self.lost:
            about = journal.left[name]
            reward = about.get("reward")
            rewards = [reward] if isinstance(reward, float) else []
            taskset = str(about.get("taskset", TASKSET))
            self._fail(name, "lost: the server ended before it did", taskset, rewards)
        journal.settle()

    def name(self, random: str) -> str:
        """The id of the next trajectory: groups of a run end in their number."""
        self._next += 1
        return f"{random}-{self._next - 1}"

    async def opened(self, trajectory: Trajectory, task: Task | None) -> None:
        """Leave a durable trace of a trajectory that is about to begin."""
        await self._in_thread(partial(self._journal.opened, trajectory.id, _about(task)))

    async def rewarded(self, name: str, task: Task | None, given: Given) -> None:
        """Note the reward of an open trajectory, which outlives a kill of the server."""
        about = {**_about(task), "reward": given.value}
        await self._in_thread(partial(self._journal.opened, name, about))

    async def store(
        self, trajectory: Trajectory, task: Task | None, given: Given | None, end: RolloutEnd
    ) -> Stored:
        """Store the rows of a trajectory that is closed; they are durable when this returns.

        Raises: what the buffer raises; then nothing is acknowledged.
        """
        task = task or Task(TASKSET, ())
        if not task.messages:
            task = replace(task, messages=trajectory.prompt)
        ctx = RolloutContext(
            self._run_id, trajectory.id, 0, 0, EXPLORER, RowSource.ROLLOUT, trajectory.sampling
        )
        rows = trajectory.rows(task, ctx)
        if rows:
            rows[-1] = _with_outcome(rows[-1], trajectory, given, end)
        return await self._in_thread(partial(self._store, trajectory.id, task, rows))

    async def dropped(self, name: str, why: str, taskset: str) -> None:
        """Note that a trajectory ended without rows."""
        await self._in_thread(partial(self._drop, name, why, taskset))

    async def find(self, name: str) -> Stored | None:
        """The stored rows of a closed trajectory; None where there are none."""
        rows = await self._in_thread(partial(self._trajectory_rows, name))
        ids = tuple(str(row["experience_id"]) for row in rows)
        return Stored(ids, reward=rows[-1]["reward"]) if rows else None

    async def reward_later(self, stored: Stored, given: Given, author: str) -> None:
        """Store a reward as feedback about the row that has the outcome. Raises: RowError for parts of it."""
        if given.parts:
            raise RowError(
                "the parts of a reward are stored with a trajectory's rows, and it has ended; give the "
                "number alone."
            )
        item = Feedback(stored.experience_ids[-1], author, FeedbackKey.REWARD, given.value)
        await self._in_thread(partial(self._buffer.add_feedback, [item]))

    def close(self) -> None:
        """Wait for what is being written; idempotent."""
        self._threads.shutdown()

    def _store(self, name: str, task: Task, rows: Sequence[Experience]) -> Stored:
        if not rows:
            self._drop(name, "nothing was sampled", task.taskset)
            return Stored(())
        self._buffer.add_tasks([task])
        seqs = self._buffer.append(rows).seqs
        self._journal.ended(name)
        kept = tuple(row.experience_id for row, seq in zip(rows, seqs, strict=True) if seq is not None)
        return Stored(kept, len(rows) - len(kept))

    def _drop(self, name: str, why: str, taskset: str) -> None:
        self._fail(name, why, taskset)
        self._journal.ended(name)

    def _fail(self, name: str, why: str, taskset: str, rewards: Sequence[float] = ()) -> None:
        """Write how a trajectory without rows ended, once."""
        if len(self._buffer.read("groups", ["group_id"], Compare("group_id", "eq", name))):
            return
        row = {
            "group_id": name,
            "run_id": self._run_id,
            "ordinal": _ordinal(name),
            "round": -1,
            "attempt": 0,
            "taskset": taskset,
            "task_id": "",
            "version": 0,
            "version_min": 0,
            "outcome": str(GroupOutcome.CANCELLED),
            "rewards": list(rewards),
            "seqs": [],
            "dropped_by": "",
            "error": why,
        }
        self._buffer.add_rows("groups", [row])

    def _trajectory_rows(self, name: str) -> list[dict[str, Any]]:
        columns = ["experience_id", "turn", "reward"]
        found = self._buffer.read("experiences", columns, Compare("group_id", "eq", name))
        return sorted(found.to_pylist(), key=lambda row: int(row["turn"]))

    def _first_ordinal(self) -> int:
        mine = Compare("run_id", "eq", self._run_id)
        names = {
            name
            for table in ("experiences", "groups")
            for name in self._buffer.read(table, ["group_id"], mine).column("group_id").to_pylist()
        }
        return 1 + max(map(_ordinal, (*names, *self._journal.left)), default=-1)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)


def _about(task: Task | None) -> dict[str, object]:
    """The journal's record of a trajectory."""
    return {"taskset": TASKSET if task is None else task.taskset}


def _ordinal(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _with_outcome(
    row: Experience, trajectory: Trajectory, given: Given | None, end: RolloutEnd
) -> Experience:
    """The last row of a trajectory, with its reward or why it has none."""
    turns = len(list(trajectory.turns))
    row = replace(row, metadata={**row.metadata, "end": str(end), "turns": turns})
    if given is not None:
        return replace(row, reward=given.value, reward_parts=dict(given.parts))
    if end is RolloutEnd.DEADLINE:
        why = Unscored("its client did not end it before the deadline", UnscoredCause.TIMEOUT)
        return replace(row, unscored_reason=reason_text("the trajectory", why))
    return row
