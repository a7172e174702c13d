"""Stored solutions for the quickstart's arithmetic tasks: some show their work, some only answer."""

from __future__ import annotations

import re

from rft_data.core.errors import RowError
from rft_data.core.rows import Task

_EXPRESSION = re.compile(r"(-?\d+(?: [+-] -?\d+)*) =")


def short_answer(task: Task) -> str:
    """The final answer alone: `#### 2`."""
    return f"#### {task.answer}"


def worked_solution(task: Task) -> str:
    """For `... 4 + 3 - 5 =` the text `4+3=7; 7-5=2 #### 2`.

    Raises: RowError when the prompt holds no chain of sums, or the result is not the task's answer.
    """
    question = str(task.messages[-1]["content"])
    found = _EXPRESSION.search(question)
    if found is None:
        raise RowError(f"task '{task.task_id}': there is no sum such as '4 + 3 - 5 =' in {question!r}.")
    first, *rest = found.group(1).split(" ")
    total, lines = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        after = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total}{sign}{term}={after}")
        total = after
    if str(total) != task.answer:
        raise RowError(f"task '{task.task_id}': worked result {total}, stored answer {task.answer!r}.")
    return f"{'; '.join(lines)} #### {total}"
