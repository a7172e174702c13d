"""One task: what is known of it, who drew it when, where it comes from and what was made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError
from rft_data.core.filters import And, Compare, Filter, In
from rft_data.core.rows import Task, TaskKey
from rft_data.core.stored_rows import GroupRow
from rft_data.core.words import FeedbackKey
from rft_data.exchange.standing import Word, retired_tasks, words
from rft_data.reading.lineage import stored_task

MOST_DRAWS, MOST_ROWS = 200, 1_000
"""Newest draws, and oldest rows, of a task that are looked at."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One time that a selector drew the task."""

    run_id: str
    selector: str
    """As the run's recipe names it; empty where that is not stored."""
    ordinal: int
    """Order of admission in its run."""
    round: int
    version: int
    outcome: str
    dropped_by: str
    reward: float | None
    """Mean of its known rewards."""
    group_id: str


@dataclass(frozen=True, slots=True)
class TaskView:
    """Everything about one task."""

    key: TaskKey
    task: Task | None
    """None when the task was never stored."""
    draws: Sequence[Draw]
    """Newest first."""
    anchor: int | None
    """Row number of its first experience, to which what people say of the task is attached."""
    parent: tuple[int, TaskKey] | None
    """Row, and its task, that the task was made from."""
    variants: Sequence[TaskKey]
    """Tasks that were made from its rows."""
    retired: bool
    """Whether people retired it."""
    words: Sequence[Word]
    """Statements of people about retiring it, oldest first."""


def task_view(buffer: Buffer, key: TaskKey) -> TaskView:
    """Raises: MissingFileError when nothing is stored under this key."""
    mine = And((Compare("taskset", "eq", key.taskset), Compare("task_id", "eq", key.task_id)))
    task = stored_task(buffer, key)
    rows = buffer.read("experiences", ["seq", "experience_id"], mine, MOST_ROWS).to_pylist()
    if task is None and not rows:
        raise MissingFileError(f"there is no task '{key.task_id}' in taskset '{key.taskset}'.")
    ids = tuple(row["experience_id"] for row in rows)
    about = And((Compare("key", "eq", FeedbackKey.RETIRE_TASK), In("experience_id", ids)))
    return TaskView(
        key,
        task,
        _draws(buffer, mine),
        min((row["seq"] for row in rows), default=None),
        _parent(buffer, task),
        _variants(buffer, ids),
        retired_tasks(buffer).get(key, False),
        words(buffer.read("feedback", None, about)) if ids else (),
    )


def _draws(buffer: Buffer, mine: Filter) -> list[Draw]:
    columns = ["run_id", "ordinal", "round", "version", "outcome", "dropped_by", "rewards", "group_id"]
    groups = buffer.read("groups", columns, mine).to_pylist()[-MOST_DRAWS:]
    runs = tuple({group["run_id"] for group in groups})
    stored = buffer.read("runs", ["run_id", "recipe"], In("run_id", runs)).to_pylist()
    selectors = {row["run_id"]: _selector(json.loads(row["recipe"])) for row in stored}
    return [_draw(group, selectors.get(group["run_id"], "")) for group in reversed(groups)]


def _draw(group: GroupRow, selector: str) -> Draw:
    known = [reward for reward in group["rewards"] if reward is not None]
    return Draw(
        group["run_id"],
        selector,
        group["ordinal"],
        group["round"],
        group["version"],
        group["outcome"],
        group["dropped_by"],
        float(np.mean(known)) if known else None,
        group["group_id"],
    )


def _selector(recipe: Mapping[str, object]) -> str:
    section = recipe.get("selector")
    return str(section.get("use", "")) if isinstance(section, Mapping) else ""


def _parent(buffer: Buffer, task: Task | None) -> tuple[int, TaskKey] | None:
    if task is None or task.parent_experience_id is None:
        return None
    named = Compare("experience_id", "eq", task.parent_experience_id)
    rows = buffer.read("experiences", ["seq", "taskset", "task_id"], named, 1).to_pylist()
    return (rows[0]["seq"], TaskKey(rows[0]["taskset"], rows[0]["task_id"])) if rows else None


def _variants(buffer: Buffer, ids: tuple[str, ...]) -> list[TaskKey]:
    if not ids:
        return []
    rows = buffer.read("tasks", ["taskset", "task_id"], In("parent_experience_id", ids)).to_pylist()
    return [TaskKey(row["taskset"], row["task_id"]) for row in rows]
