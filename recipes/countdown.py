"""Countdown: a solution that tries expressions one after another, and one that is only the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from rft_data import RowError, Task

_TERM = re.compile(r"([+-]?)(\d+)")


def guessed(task: Task) -> str:
    """The answer that the dataset has, without the way to it: `#### 8+7-4`."""
    return f"#### {(task.answer or '').replace(' ', '')}"


def searched(task: Task) -> str:
    """The sums that were tried until one came to the target: `4+7+8=11+8=19; 4+7-8=11-8=3 #### 4+7-8`.

    Raises: RowError when no sum of the task's numbers comes to its target.
    """
    tried = []
    for sum_ in sums(task.metadata["numbers"]):
        tried.append("=".join(worked(sum_)))
        if total(sum_) == task.metadata["target"]:
            return f"{'; '.join(tried)} #### {sum_}"
    raise RowError(
        f"task '{task.task_id}': no sum of {task.metadata['numbers']} is {task.metadata['target']}."
    )


def sums(numbers: Sequence[int]) -> Iterator[str]:
    """The sums and differences of all numbers: the most are added first; numbers keep their order."""
    places = range(len(numbers))
    for subtracted in range(len(numbers)):
        for taken in reversed(list(combinations(places, subtracted))):
            added = [numbers[place] for place in places if place not in taken]
            yield "+".join(map(str, added)) + "".join(f"-{numbers[place]}" for place in taken)


def worked(sum_: str) -> list[str]:
    """A sum and what is left of it after each addition, up to its value: `4+7-8`, `11-8`, `3`."""
    terms = _TERM.findall(sum_)
    starts = ["".join(sign + digits for sign, digits in terms[:end]) for end in range(2, len(terms) + 1)]
    rests = ["".join(sign + digits for sign, digits in terms[end:]) for end in range(2, len(terms) + 1)]
    return [sum_, *(f"{total(start)}{rest}" for start, rest in zip(starts, rests, strict=True))]


def total(sum_: str) -> int:
    """The value of a sum: `7+8-4` is 11."""
    return sum(int(sign + digits) for sign, digits in _TERM.findall(sum_))
