"""The reward `multiple_choice`: the letter of the chosen option."""

from __future__ import annotations

import re
from typing import ClassVar

from explorers.rewards.final_answer import final_answer, last_said
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_WRAPPED = re.compile(r"[\s({\[*]*(?:\\text\s*\{)?[\s(*]*(?P<letter>[A-Za-z])(?![A-Za-z0-9'])")
"""A letter alone, with brackets and bold marks around it: `(C)`, `**C**`, `C. 12`, `\\text{C}`."""
_ALONE = re.compile(r"[^A-Za-z0-9]*(?P<letter>[A-Z])[^A-Za-z0-9]*")


class MultipleChoice:
    """1.0 when the completion chooses the task's letter, else 0.0.

    The choice is the letter in the last `<answer>`, `\\boxed` or after `####`; else after the last "answer
    is"; else a last line that is a letter alone. A task without a letter of `options` is unscored.
    """

    trusted: ClassVar[bool] = True
    """Quick and total."""

    def __init__(self, options: str = "ABCD") -> None:
        """`options`: the letters that there are. Raises: ValueError for none, or other characters."""
        if not options.isalpha() or len(set(options.upper())) < len(options):
            raise ValueError(f"options are {options!r}; wanted letters, each once")
        self._options = options.upper()

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Compare the letters; small ones count as large ones where they are marked."""
        if task.answer is None:
            return Unscored("the task has no answer")
        gold = self._chosen(task.answer)
        if gold is None:
            return Unscored(f"the task's answer {task.answer[-80:]!r} is none of {self._options}")
        return float(self._chosen(completion) == gold)

    def _chosen(self, text: str) -> str | None:
        marked = final_answer(text)
        if marked != text.strip() or len(marked) <= 1:
            return self._letter(marked)
        said = last_said(text)
        if said is not None:
            return self._letter(said)
        lines = text.strip().splitlines()
        alone = _ALONE.fullmatch(lines[-1]) if lines else None
        if alone is None and len(lines) == 1:
            alone = re.match(r"\s*\(?(?P<letter>[A-Z])[).:](?:\s|$)", text)
        return self._letter(alone["letter"]) if alone else None

    def _letter(self, text: str) -> str | None:
        found = _WRAPPED.match(text)
        letter = found["letter"].upper() if found else None
        return letter if letter and letter in self._options else None
