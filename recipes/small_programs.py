"""Small programs: a function from its description, written with care and without."""

from __future__ import annotations

import re

from rft_data import RowError, Task

_STEP = re.compile(r"(plus|minus|times) (\d+)")
_SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def careful(task: Task) -> str:
    """`x plus 3, times 2` as `def f(x): return ((x+3)*2)`: what is done first stands in brackets."""
    body = "x"
    for word, number in _steps(task):
        body = f"({body}{_SIGNS[word]}{number})"
    return f"def f(x): return {body}"


def hasty(task: Task) -> str:
    """The same without brackets, `def f(x): return x+3*2`: wrong where a sum is multiplied."""
    return "def f(x): return x" + "".join(f"{_SIGNS[word]}{number}" for word, number in _steps(task))


def _steps(task: Task) -> list[tuple[str, str]]:
    question = str(task.messages[-1]["content"])
    if not (found := _STEP.findall(question)):
        raise RowError(f"task '{task.task_id}': there is no step such as 'plus 3' in {question!r}.")
    return found
