"""The reward `number`: a number within a tolerance of the task's."""

from __future__ import annotations

import math
import re
from typing import ClassVar

from explorers.rewards.final_answer import final_answer
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.?)(?:[eE][-+]?\d+)?(?![\w])"
)
_LONGEST = 4000
"""Characters of an answer that are looked through, from its end."""


class Number:
    """1.0 when the completion's last number is near the task's, else 0.0.

    |found - wanted| <= max(absolute, relative * |wanted|). Thousands have commas; `1e-3` is a number, `3/4`
    are two (math_verify reads fractions).
    """

    trusted: ClassVar[bool] = True
    """Quick and total."""

    def __init__(self, absolute: float = 1e-6, relative: float = 0.0, marker: str | None = None) -> None:
        """`marker`: what comes before the answer, on the same line; None: see `final_answer`.

        Raises: ValueError for a tolerance below 0 or not finite.
        """
        if not all(math.isfinite(one) and one >= 0 for one in (absolute, relative)):
            raise ValueError(f"absolute is {absolute} and relative {relative}; wanted finite numbers >= 0")
        self._absolute = absolute
        self._relative = relative
        self._marker = marker

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the task's answer holds no number."""
        if task.answer is None:
            return Unscored("the task has no answer")
        wanted = last_number(final_answer(task.answer))
        if wanted is None:
            return Unscored(f"the task's answer {task.answer[-80:]!r} holds no number")
        found = last_number(final_answer(completion, self._marker))
        return float(
            found is not None and abs(found - wanted) <= max(self._absolute, self._relative * abs(wanted))
        )


def last_number(text: str) -> float | None:
    """The last finite number in a text."""
    found = [one for one in _NUMBER.findall(text[-_LONGEST:]) if any(map(str.isdigit, one))]
    value = float(found[-1].replace(",", "")) if found else math.inf
    return value if math.isfinite(value) else None
