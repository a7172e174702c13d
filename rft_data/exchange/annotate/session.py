"""One author's way through what is to be annotated: each answer is stored before the next subject is shown.

Nothing is read from or written to a terminal here; `terminal.py` does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rft_data.buffer import Buffer
from rft_data.core.filters import Compare
from rft_data.core.rows import Feedback
from rft_data.core.words import FeedbackKey
from rft_data.exchange.annotate.subjects import Subject, store_preferred
from rft_data.exchange.feedback import is_withdrawal, withdrawal

RATINGS = "012345"
LEFT, RIGHT = "a", "b"
SKIP, UNDO, QUIT = "s", "u", "q"
_AGAIN = "rft:again"


@dataclass(frozen=True, slots=True)
class _Given:
    """A subject and what was stored about it."""

    subject: Subject
    said: Feedback


class Session:
    """Answers go to the buffer as feedback; choices become preference pairs when the session is closed.

    A choice that is stored as feedback can be taken back, a preference pair cannot: hence the order. A killed
    session's choices become pairs when its author starts the next.
    """

    def __init__(self, buffer: Buffer, author: str, subjects: Iterable[Subject]) -> None:
        """Start where this author stopped: what he answered or skipped before is passed over."""
        self._buffer = buffer
        self._author = author
        self._said: Counter[tuple[str, str]] = Counter()
        """How often the author spoke, by (experience, key)."""
        self._done: set[tuple[str, str | None]] = set()
        """Subjects that have an answer, by the ids of left and right."""
        store_preferred(buffer, author)
        self._remember()
        self._subjects: Iterator[Subject] = iter(subjects)
        self._waiting: list[Subject] = []
        self._given: list[_Given] = []
        self.counts: Counter[str] = Counter()
        """Answers of this session that stand, by key."""

    def _remember(self) -> None:
        columns = ["experience_id", "key", "value", "text"]
        live: dict[tuple[str, str], list[str | None]] = {}
        mine = Compare("author", "eq", self._author)
        for row in self._buffer.read("feedback", columns, mine).to_pylist():
            about = (row["experience_id"], row["key"])
            self._said[about] += 1
            if row["key"] not in (FeedbackKey.SCORE, FeedbackKey.PREFERRED, FeedbackKey.SKIPPED):
                continue
            if is_withdrawal(row["value"], row["text"]):
                live.pop(about, None)
            else:
                live.setdefault(about, []).append(_partner(row["key"], row["text"]))
        for (experience_id, _), partners in live.items():
            self._done.update((experience_id, partner) for partner in partners)
            self._done.update((partner, experience_id) for partner in partners if partner is not None)

    def current(self) -> Subject | None:
        """What is to be answered now; None when nothing is left."""
        while not self._waiting:
            subject = next(self._subjects, None)
            if subject is None:
                return None
            if _ids(subject) not in self._done:
                self._waiting.append(subject)
        return self._waiting[-1]

    def answer(self, key: str) -> bool:
        """Take a key about the current subject; False for one that means nothing here. Stored on return."""
        subject = self.current()
        if key == UNDO:
            return self._undo()
        said = None if subject is None else self._meant(subject, key)
        if subject is None or said is None:
            return False
        earlier = self._said[said.experience_id, said.key]
        if earlier:  # the same words again would be the same row, which is stored once
            said = replace(said, text=f"{said.text or ''} {_AGAIN} {earlier}".strip())
        self._store(said)
        self._waiting.pop()
        self._given.append(_Given(subject, said))
        self.counts[said.key] += 1
        return True

    def close(self) -> int:
        """Make preference pairs of the choices; returns how many were new. Idempotent."""
        return store_preferred(self._buffer, self._author)

    def _meant(self, subject: Subject, key: str) -> Feedback | None:
        left, right = (
            subject.left.experience_id,
            None if subject.right is None else subject.right.experience_id,
        )
        if key == SKIP:
            return Feedback(left, self._author, FeedbackKey.SKIPPED, text=right or "")
        if right is None:
            return Feedback(left, self._author, FeedbackKey.SCORE, float(key)) if key in RATINGS else None
        if key not in (LEFT, RIGHT):
            return None
        chosen, rejected = (left, right) if key == LEFT else (right, left)
        return Feedback(chosen, self._author, FeedbackKey.PREFERRED, 1.0, rejected)

    def _undo(self) -> bool:
        if not self._given:
            return False
        last = self._given.pop()
        self._store(withdrawal(last.said, self._said[last.said.experience_id, last.said.key]))
        self.counts[last.said.key] -= 1
        self._waiting.append(last.subject)
        return True

    def _store(self, said: Feedback) -> None:
        self._buffer.add_feedback([said])
        self._said[said.experience_id, said.key] += 1


def _ids(subject: Subject) -> tuple[str, str | None]:
    return subject.left.experience_id, None if subject.right is None else subject.right.experience_id


def _partner(key: str, text: str | None) -> str | None:
    """The other id of a pair; None for a rating."""
    words = (text or "").split()
    return words[0] if key != FeedbackKey.SCORE and words and not words[0].startswith("rft:") else None
