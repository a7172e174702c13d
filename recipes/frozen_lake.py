"""Letters without a plan: what the model is shown before it walks."""

from __future__ import annotations

from rft_data.core.rows import Task


def any_letter(task: Task) -> str:
    """One of the four moves, by the task's id."""
    return "ldru"[int(task.task_id[:8], 16) % 4]
