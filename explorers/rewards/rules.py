"""Rewards of one finished completion by rules: exact answer, format, math-verify; and the one for later.

A reward never raises for bad model output; it returns `Unscored` only when the task cannot be judged. A class
with `trusted` may run in the explorer's own process; `scoring.py` decides where a reward runs.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import ClassVar

from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_QUANTITY = re.compile(rf"[$€£]?\s*{_NUMBER}\s*(?:%|[A-Za-z][A-Za-z .]*)?")
"""A number with a currency sign before or words after it: read as the number alone."""
_LATEX = re.compile(r"\$.+\$|\\\(|\\\[|\\boxed", re.DOTALL)
_FINAL = re.compile(r"(?:####|^A:)(?P<line>[^\n]*)|(?P<boxed>\\boxed)", re.MULTILINE)
_PROSE = re.compile(r"[^\\\d]*[A-Za-z]{3}[^\\\d]*")
_EXPLODES = re.compile(
    r"(?:\^|\*\*)[^+\s]*(?:\^|\*\*)|(?:\^|\*\*)\W*\d{4}|\d{4}\s*!|(?:binom|sum|prod|int)\W.*\d{4}"
)
"""Nested and huge powers, factorials and sums: evaluating them may take too long."""
_LONGEST = 300
_SECONDS = 2


class ExactAnswer:
    """1.0 when the text after the last marker equals the task's answer, spaces and commas aside, else 0.0."""

    trusted: ClassVar[bool] = True
    """Always quick and never fails, so it may run in the explorer's own process."""

    def __init__(self, marker: str = "####") -> None:
        """`marker`: what comes before the final answer, on the same line."""
        self._marker = marker

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the task has no answer. The answer may itself be a solution with the marker."""
        if task.answer is None:
            return Unscored("the task has no answer")
        gold = after_last(self._marker, task.answer)
        found = after_last(self._marker, completion)
        return float(found is not None and _bare(found) == _bare(task.answer if gold is None else gold))


class AnswerFormat:
    """1.0 when the completion has the marker exactly once and ends with it and one number, else 0.0."""

    trusted: ClassVar[bool] = True
    """As `ExactAnswer`."""

    def __init__(self, marker: str = "####") -> None:
        """`marker`: what comes before the final answer, on the same line."""
        self._marker = marker
        self._end = re.compile(rf"{re.escape(marker)}[^\S\n]*{_NUMBER}\s*\Z")

    def __call__(self, task: Task, completion: str) -> float:
        """The task does not matter."""
        return float(completion.count(self._marker) == 1 and self._end.search(completion) is not None)


class MathVerify:
    """1.0 when math-verify finds the final answer equal to the task's, else 0.0.

    The final answer is what follows the last `####`, `A:` (at the start of a line) or `\\boxed`, else the
    last number. It is looked for in the task's answer in the same way.
    """

    def __init__(self) -> None:
        """Raises: MissingExtraError without the package math-verify."""
        self._library = need("math_verify", "train", "the reward math_verify")
        # It warns at every time-out, and once that there is none.
        logging.getLogger("math_verify").setLevel(logging.ERROR)

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the task's answer is absent or cannot be parsed."""
        if task.answer is None:
            return Unscored("the task has no answer")
        marked = _final(task.answer)
        answer = _trimmed(task.answer if marked is None else marked)
        gold = [] if _PROSE.fullmatch(answer) else self._parse(answer)
        if not gold:
            return Unscored(f"math-verify cannot parse the task's answer {task.answer[-80:]!r}")
        marked = _final(completion)
        text = _trimmed(_last_number(completion) if marked is None else marked)
        if _EXPLODES.search(text):
            return 0.0
        return float(self._library.verify(gold, self._parse(text), timeout_seconds=_time_limit(text)))

    def _parse(self, text: str) -> list[object]:
        """math-verify's reading of a final answer; empty when it has none."""
        if not text:
            return []
        plain = _QUANTITY.fullmatch(text) or _LATEX.search(text)
        parsed: list[object] = self._library.parse(
            text if plain else f"${text}$", parsing_timeout=_time_limit(text)
        )
        return parsed


class Later:
    """Not known yet: the reward of the rollout, all of it, comes as feedback (docs/feedback.md)."""

    trusted: ClassVar[bool] = True
    """As `ExactAnswer`."""

    def __call__(self, task: Task, completion: str) -> Unscored:
        """Whatever the task and the completion are."""
        return Unscored("", UnscoredCause.LATER)


def after_last(marker: str, text: str) -> str | None:
    """The rest of the line after the last marker; None when there is no marker."""
    _, found, rest = text.rpartition(marker)
    return rest.partition("\n")[0] if found else None


def _bare(text: str) -> str:
    return re.sub(r"[\s,]", "", text)


def _final(text: str) -> str | None:
    """The text from the last marked answer on; None when no answer is marked."""
    last = None
    for last in _FINAL.finditer(text):  # noqa: B007 - only the last one counts
        pass
    if last is None:
        return None
    return text[last.start() :] if last["boxed"] else last["line"]


def _trimmed(text: str) -> str:
    """Without spaces and bold marks around it, and cut to what a final answer can need."""
    return text[:_LONGEST].strip().strip("*").strip()


def _last_number(text: str) -> str:
    numbers = re.findall(_NUMBER, text)
    return str(numbers[-1]) if numbers else ""


def _time_limit(text: str) -> int | None:
    """Seconds math-verify may take: none for numbers, nor where its SIGALRM cannot work."""
    if _QUANTITY.fullmatch(text) or threading.current_thread() is not threading.main_thread():
        return None
    return _SECONDS
