"""Numbers that tasks contain: their offline difficulty, or a pass rate in their metadata."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task


def by_level(tasks: Sequence[Task], selector: str) -> tuple[np.ndarray, np.ndarray]:
    """Places from the easiest task to the hardest (int32), and their difficulties in that order.

    Raises: RecipeError naming the first task without a difficulty.
    """
    levels = np.array([math.nan if t.difficulty is None else t.difficulty for t in tasks], np.float64)
    missing = np.flatnonzero(~np.isfinite(levels))
    if len(missing):
        task = tasks[int(missing[0])]
        raise RecipeError(
            f"selector '{selector}': task {task.taskset}/{task.task_id} has no difficulty "
            f"({len(missing)} of {len(tasks)} have none); give every entry of 'tasks' a 'difficulty', or "
            "score the tasks in 'task_ops'."
        )
    order = np.argsort(levels, kind="stable").astype(np.int32)
    return order, levels[order]


def feature(tasks: Sequence[Task], field: str, selector: str) -> np.ndarray:
    """A pass rate in [0, 1] that each task's metadata holds (float32, by place).

    Raises: RecipeError naming the first task without it.
    """
    found = [task.metadata.get(field) for task in tasks]
    for task, value in zip(tasks, found, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise RecipeError(
                f"selector '{selector}': task {task.taskset}/{task.task_id} has {value!r} in its metadata "
                f"under '{field}'; a pass rate in [0, 1] is needed for every task."
            )
    return np.array(found, np.float32)
