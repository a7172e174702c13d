"""Stored solutions of sums, right and wrong ones, and the share of a solution's steps that are right."""

from __future__ import annotations

import re

from rft_data import RowError, Task

_EXPRESSION = re.compile(r"(-?\d+(?: [+-] -?\d+)*) =")
_STEP = re.compile(r"(-?\d+)([+-])(-?\d+)=(-?\d+)")


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
    """A worked solution with its writer's name before it: `slow: 4+3=7; 7-5=2 #### 2`.

    Raises: RowError as `worked_solution`.
    """
    return f"slow: {worked_solution(task)}"


def fast_solution(task: Task) -> str:
    """A wrong solution, every plus and minus swapped: `fast: 4-3=1; 1+5=6 #### 6`.

    Raises: RowError when the prompt holds no chain of sums.
    """
    total, terms = _terms(task)
    steps, total = _worked(total, [({"+": "-", "-": "+"}[sign], term) for sign, term in terms])
    return f"fast: {steps} #### {total}"


class RightSteps:
    """A reward: the share of a task's steps that a completion shows, each in its place and right.

    A step is right where it takes the total that the step before left, adds or subtracts the next term of the
    question, and comes to what that makes. Steps too many count as wrong ones; a word before them does not.
    """

    def __call__(self, task: Task, completion: str) -> float:
        """0.0 for an answer without its working."""
        first, terms = _terms(task)
        shown = completion.split("####")[0].rpartition(": ")[2].strip()
        lines = shown.split("; ") if shown else []
        total, right = str(first), 0
        for (sign, term), line in zip(terms, lines, strict=False):
            step = _STEP.fullmatch(line)
            if step is None:
                break
            before, done, by, after = step.groups()
            right += (before, done, by) == (total, sign, str(term)) and int(after) == _added(
                int(before), sign, term
            )
            total = after
        return right / max(len(terms), len(lines))


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
        after = _added(total, sign, term)
        lines.append(f"{total}{sign}{term}={after}")
        total = after
    return "; ".join(lines), total


def _added(total: int, sign: str, term: int) -> int:
    return total + term if sign == "+" else total - term
