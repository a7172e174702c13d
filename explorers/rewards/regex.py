"""The reward `regex`: whether a pattern is found."""

from __future__ import annotations

import re
from typing import ClassVar

from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_ANSWER = "{answer}"


class Regex:
    """1.0 when the pattern is found in the completion, else 0.0.

    Patterns are RE2's: linear in time whatever a model writes, without look-around and back references.
    """

    trusted: ClassVar[bool] = True
    """Linear in time."""

    def __init__(self, pattern: str, whole: bool = False, ignore_case: bool = False) -> None:
        """Compile it.

        Args:
            pattern: `{answer}` in it stands for the task's answer, as plain text. `(?s)` and `(?m)` work.
            whole: the pattern must match the whole completion, white space around it aside.
        Raises: ValueError for a pattern that RE2 cannot read.
        """
        self._pattern = pattern
        self._whole = whole
        self._ignore_case = ignore_case
        self._wants_answer = _ANSWER in pattern
        import pyarrow as pa  # the processes of other rewards do without: 0.15 s of CPU time each
        import pyarrow.compute as pc

        self._scalar, self._match = pa.scalar, pc.match_substring_regex
        try:
            self._found("", "")
        except pa.ArrowInvalid as err:
            raise ValueError(f"the pattern {pattern!r} cannot be read: {err}") from err

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the pattern wants the task's answer and there is none."""
        if self._wants_answer and task.answer is None:
            return Unscored("the task has no answer")
        return float(self._found(completion, task.answer or ""))

    def _found(self, text: str, answer: str) -> bool:
        pattern = self._pattern.replace(_ANSWER, quoted(answer)) if self._wants_answer else self._pattern
        if self._whole:
            text, pattern = text.strip(), rf"\A(?:{pattern})\z"
        return bool(self._match(self._scalar(text), pattern, ignore_case=self._ignore_case).as_py())


def quoted(text: str) -> str:
    """`text` as an RE2 pattern that matches it alone."""
    return re.sub(r"[^\w\s]", lambda found: "\\" + found[0] if found[0].isascii() else found[0], text)
