"""Held-out accuracy: which tasks are asked, and what share of the answers is right."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rft_data.errors import EngineError
from rft_data.rows import Experience, Task, TaskKey

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares in [0, 1]."""

    overall: float
    by_class: dict[str, float]
    """By `taskset/difficulty`."""


def evaluation_tasks(tasks: Sequence[Task], limit: int) -> list[Task]:
    """At most `limit` held-out tasks, evenly over (taskset, difficulty), the same in every run."""
    classes: dict[tuple[str, float | None], list[Task]] = {}
    for task in sorted((t for t in tasks if t.split == "heldout"), key=lambda t: t.task_id):
        classes.setdefault((task.taskset, task.difficulty), []).append(task)
    share = max(1, limit // max(1, len(classes)))
    return [task for members in classes.values() for task in members[:share]][:limit]


def accuracy(rows: Sequence[Experience], tasks: Sequence[Task], judge: str) -> Accuracy:
    """Share of rows whose reward part `judge` is 1.0; an unscored or failed rollout counts as wrong.

    Raises: EngineError when every rollout failed.
    """
    failed = [row for row in rows if judge not in row.reward_parts]
    if failed:
        reason = failed[0].unscored_reason
        if len(failed) == len(rows):
            raise EngineError(f"all {len(rows)} evaluation rollouts failed, the first with: {reason}")
        log.warning("%d of %d evaluation rollouts were not scored, first: %s", len(failed), len(rows), reason)
    difficulty = {task.key: task.difficulty for task in tasks}
    passed: dict[str, list[float]] = {}
    for row in rows:
        name = f"{row.taskset}/{difficulty[TaskKey(row.taskset, row.task_id)]}"
        passed.setdefault(name, []).append(float(row.reward_parts.get(judge) == 1.0))
    total = [value for values in passed.values() for value in values]
    by_class = {name: sum(values) / len(values) for name, values in sorted(passed.items())}
    return Accuracy(sum(total) / len(total), by_class)
