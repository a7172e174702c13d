"""Differences of a completion from another one, word by word."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

MOST_WORDS = 400
"""Words of a completion that are compared; the rest is shown as it is."""
_MOST_CHARACTERS = 20_000
_LIMIT_S = 0.15
"""How long all completions of one page are compared for."""
_WORD = re.compile(r"\S+\s*|\s+")


class Kind(StrEnum):
    """Whether a piece of text is in both versions or in one."""

    SAME = "same"
    OWN = "own"
    """The other completion does not have it."""
    GONE = "gone"
    """Only the other completion has it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a text."""

    kind: Kind
    text: str


class Differences:
    """Compares the completions of one page, until the time for it is over."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _LIMIT_S
        self.skipped = 0
        """Completions for which no time was left."""

    def between(self, reference: str, text: str) -> tuple[Piece, ...]:
        """The pieces of a text, and what it lacks of the reference.

        Without its pieces of kind GONE they are the whole text.
        """
        if time.monotonic() > self._end:
            self.skipped += 1
            return (Piece(Kind.SAME, text),)
        theirs, own = _words(reference), _words(text)
        matcher = SequenceMatcher(None, [w.strip() for w in theirs], [w.strip() for w in own], autojunk=False)
        found: list[Piece] = []
        for tag, low, high, first, last in matcher.get_opcodes():
            if tag in ("delete", "replace"):
                found.append(Piece(Kind.GONE, "".join(theirs[low:high])))
            if first < last:
                kind = Kind.SAME if tag == "equal" else Kind.OWN
                found.append(Piece(kind, "".join(own[first:last])))
        rest = text[sum(map(len, own)) :]
        return (*found, Piece(Kind.SAME, rest)) if rest else tuple(found)


def _words(text: str) -> Sequence[str]:
    """The first words, each with the space after it."""
    return _WORD.findall(text[:_MOST_CHARACTERS])[:MOST_WORDS]
