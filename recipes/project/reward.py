"""The reward of this project, and the answers that a model is shown first."""

from __future__ import annotations

import re

from rft_data import Task


def score(task: Task, completion: str) -> float:
    """1.0 when the last number of the completion is the task's answer, 0.1 for another number, else 0.0."""
    numbers = re.findall(r"-?\d+", completion)
    if not numbers:
        return 0.0
    return 1.0 if numbers[-1] == task.answer else 0.1


def shown(task: Task) -> str:
    """An answer to imitate."""
    return f"It is {task.answer}"
