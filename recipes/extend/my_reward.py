"""A reward: 1.0 for the right last number, and 0.1 for any number at all."""

from __future__ import annotations

import re

from rft_data import Task


def last_number(task: Task, completion: str, for_trying: float = 0.1) -> float:
    """How good a completion is, in [0, 1]."""
    numbers = re.findall(r"-?\d+", completion)
    if numbers and numbers[-1] == task.answer:
        return 1.0
    return for_trying if numbers else 0.0
