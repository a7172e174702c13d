"""The reward of a new recipe that fits the reference answers of its data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from explorers.rewards.final_answer import last_boxed

OWN_REWARD = "./my_reward.py:score"
"""The reward of tasks that no rule judges: a file beside the recipe."""
_LETTER = re.compile(r"[A-J]")
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\[A-Za-z]+")
_FORMULA = re.compile(r"(?=.*\d|.*[=+*/^<>()]|\S$)(?!.*[A-Za-z]{3})[\w\s+\-*/^=<>().,{}\[\]|!%$€£°'\\&]+")
"""A formula without LaTeX's commands: no word, and a digit, a sign or one letter."""
_QUANTITY = re.compile(r"[$€£]?\s*-?\d[\d,]*(?:\.\d+)?\s*(?:%|[A-Za-z][A-Za-z .]*)?")
"""A number with its unit."""
_LONGEST_TEXT, _MOST_WORDS = 60, 8
"""Characters and words of a text that is compared as a whole."""
_ENDS_WITH_IT = r"(?i)(^|\W){answer}\W*$"
_JUDGE = '{use: llm_judge, args: {judges: [{base_url: "http://HOST:PORT/v1", model: NAME}]}}'


class _Kind(StrEnum):
    """The kind of an answer."""

    LETTER = "multiple_choice"
    """The letter of a choice."""
    MATH = "math_verify"
    """A number, a quantity or a formula."""
    MARKED = "exact_answer"
    """A text after `####`."""
    SHORT = "regex"
    """A few words."""
    LONG = OWN_REWARD
    """Sentences, which no rule compares."""


_NOTES = {
    _Kind.MARKED: "answers stand after ####, in completions too; docs/rewards.md",
    _Kind.SHORT: "answers are short texts: 1 for a completion that ends with its answer, case aside",
    _Kind.LONG: f"answers are sentences, which no rule compares: {OWN_REWARD} judges, for you to write; or\n"
    f"    # take a judge in its place: {_JUDGE}",
}
"""Words of the recipe about the answers."""


def answer_reward(answers: Sequence[str]) -> tuple[str, Mapping[str, object]]:
    """The reward that fits all of these answers (a component of a recipe), after a comment about it."""
    kinds = {_kind(one.strip()) for one in answers}
    kind = next(
        one for one in (_Kind.LONG, _Kind.SHORT, _Kind.MARKED, _Kind.MATH, _Kind.LETTER) if one in kinds
    )
    said = f"    # {_NOTES[kind]}\n" if kind in _NOTES else ""
    args = {"args": {"pattern": _ENDS_WITH_IT}} if kind is _Kind.SHORT else {}
    return said, {"use": str(kind), **args}


def _kind(answer: str) -> _Kind:
    if _LETTER.fullmatch(answer):
        return _Kind.LETTER
    _, marker, line = answer.rpartition("####")
    final = line.partition("\n")[0].strip() if marker else last_boxed(answer) or answer
    if _QUANTITY.fullmatch(final) or _FORMULA.fullmatch(_COMMAND.sub("1", final)):
        return _Kind.MATH
    if marker:
        return _Kind.MARKED
    is_short = len(answer) <= _LONGEST_TEXT and len(answer.split()) <= _MOST_WORDS and "\n" not in answer
    return _Kind.SHORT if is_short else _Kind.LONG
