"""New sums from played ones: the same chain with one number changed, as a synthesis of tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rft_data import Experience, RowError, Task

_EXPRESSION = re.compile(r"(-?\d+(?: [+-] -?\d+)*) =")
_NUMBER = re.compile(r"\d+")


def other_numbers(
    task: Task, experiences: Sequence[Experience], rng: np.random.Generator, count: int = 2
) -> list[Task]:
    """`count` sums that differ from the task's in one number, of as many digits (`4 + 3 =` to `4 + 8 =`).

    Raises: RowError when the prompt holds no chain of sums.
    """
    question = str(task.messages[-1]["content"])
    found = _EXPRESSION.search(question)
    if found is None:
        raise RowError(f"task '{task.task_id}': there is no sum such as '4 + 3 - 5 =' in {question!r}.")
    numbers = list(_NUMBER.finditer(found.group(1)))
    made = []
    for _ in range(count):
        old = numbers[int(rng.integers(len(numbers)))]
        digits = len(old.group())
        fresh = int(rng.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits))
        sum_ = f"{found.group(1)[: old.start()]}{fresh}{found.group(1)[old.end() :]}"
        changed = question[: found.start(1)] + sum_ + question[found.end(1) :]
        messages = (*task.messages[:-1], {**task.messages[-1], "content": changed})
        made.append(replace(task, messages=messages, answer=str(_value(sum_))))
    return made


def _value(sum_: str) -> int:
    first, *rest = sum_.split(" ")
    total = int(first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        total += int(term) if sign == "+" else -int(term)
    return total
