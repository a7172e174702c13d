"""Stored solutions of sums, right and wrong ones, and the share of a solution's steps that are right."""

from __future__ import annotations

import random
import re

from rft_data import RowError, Task

_EXPRESSION = re.compile(r"(-?\d+(?: [+-] -?\d+)*) =")
_WRITER = re.compile(r"\s*[a-z]+: ")
_SLIPS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)


def short_answer(task: Task) -> str:
    """The final answer alone: `#### 2`."""
    return f"#### {task.answer}"


def worked_solution(task: Task) -> str:
    """For `... 4 + 3 - 5 =` the text `4+3=7; 7-5=2 #### 2`.

    Raises: RowError when the prompt holds no chain of sums, or the result is not the task's answer.
    """
    steps, total = _worked(*_terms(task))
    if str(total) != task.answer:
        raise RowError(f"task '{task.task_id}': worked result {total}, stored answer {task.answer!r}.")
    return f"{steps} #### {total}"


def slow_solution(task: Task) -> str:
    """Right steps and a wrong answer, at random up to five too many or too few: `slow: 4+3=7; 7-5=2 #### 7`.

    Raises: RowError as `worked_solution`.
    """
    steps, total = worked_solution(task).split(" #### ")
    slip = random.Random(task.task_id).choice(_SLIPS)  # noqa: S311 - the same for every run
    return f"slow: {steps} #### {int(total) + slip}"


def fast_solution(task: Task) -> str:
    """A solution that begins with five too many, and ends so: `fast: 9+3=12; 12-5=7 #### 7`.

    Raises: RowError when the prompt holds no chain of sums.
    """
    first, terms = _terms(task)
    steps, total = _worked(first + 5, terms)
    return f"fast: {steps} #### {total}"


class RightSteps:
    """A reward: the share of a task's steps that a completion shows, each in its place and right.

    A step is right where `worked_solution` has the same. Steps too many count as wrong ones; one word before
    them does not, nor does the answer after them.
    """

    def __call__(self, task: Task, completion: str) -> float:
        """0.0 for an answer without its working."""
        right = _worked(*_terms(task))[0].split("; ")
        working = completion.split("####")[0]
        name = _WRITER.match(working)
        shown = working[name.end() if name else 0 :].strip()
        lines = shown.split("; ") if shown else []
        same = sum(line == wanted for line, wanted in zip(lines, right, strict=False))
        return same / max(len(lines), len(right))


def _terms(task: Task) -> tuple[int, list[tuple[str, int]]]:
    """The first number of a question's sum, and the sign and number of every other."""
    question = str(task.messages[-1]["content"])
    found = _EXPRESSION.search(question)
    if found is None:
        raise RowError(f"task '{task.task_id}': there is no sum such as '4 + 3 - 5 =' in {question!r}.")
    first, *rest = found.group(1).split(" ")
    return int(first), [(sign, int(term)) for sign, term in zip(rest[::2], rest[1::2], strict=True)]


def _worked(total: int, terms: list[tuple[str, int]]) -> tuple[str, int]:
    """The steps from a first number over all terms, and what they come to."""
    lines = []
    for sign, term in terms:
        after = total + term if sign == "+" else total - term
        lines.append(f"{total}{sign}{term}={after}")
        total = after
    return "; ".join(lines), total
