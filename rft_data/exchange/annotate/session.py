"""One author's annotation session: each answer is stored before the next subject is shown.

`terminal.py` reads the keys and prints the subjects.
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
class _Answer:
    """A subject and the feedback stored about it."""

    subject: Subject
    feedback: Feedback


@dataclass(frozen=True, slots=True)
class Answered:
    """The feedback of an author in a buffer."""

    rows: Counter[tuple[str, str]]
    """Rows of feedback, by (experience, key)."""
    subjects: set[tuple[str, str | None]]
    """Subjects that have an answer, by the ids of left and right; None on the right of a rating."""

    def has(self, subject: Subject) -> bool:
        """Whether the subject was answered or skipped."""
        return _ids(subject) in self.subjects


def answered(buffer: Buffer, author: str) -> Answered:
    """Statements of an author that are not withdrawn."""
    rows: Counter[tuple[str, str]] = Counter()
    subjects: set[tuple[str, str | None]] = set()
    columns = ["experience_id", "key", "value", "text"]
    answers: dict[tuple[str, str], list[str | None]] = {}
    for row in buffer.read("feedback", columns, Compare("author", "eq", author)).to_pylist():
        about = (row["experience_id"], row["key"])
        rows[about] += 1
        if row["key"] not in (FeedbackKey.SCORE, FeedbackKey.PREFERRED, FeedbackKey.SKIPPED):
            continue
        if is_withdrawal(row["value"], row["text"]):
            answers.pop(about, None)
        else:
            answers.setdefault(about, []).append(_partner(row["key"], row["text"]))
    for (experience_id, _), partners in answers.items():
        subjects.update((experience_id, partner) for partner in partners)
        subjects.update((partner, experience_id) for partner in partners if partner is not None)
    return Answered(rows, subjects)


class Session:
    """Stores answers as feedback at once, and turns choices into preference pairs when the session is closed.

    Feedback can be withdrawn and a preference pair cannot, so pairs come last. If a session is killed, its
    choices become pairs when its author starts the next one.
    """

    def __init__(self, buffer: Buffer, author: str, subjects: Iterable[Subject]) -> None:
        """Leave out the subjects that this author answered or skipped in earlier sessions."""
        self._buffer = buffer
        self._author = author
        store_preferred(buffer, author)
        said = answered(buffer, author)
        self._stored, self._done = said.rows, said.subjects
        self._subjects: Iterator[Subject] = iter(subjects)
        self._waiting: list[Subject] = []
        self._answers: list[_Answer] = []
        self.counts: Counter[str] = Counter()
        """Answers of this session that were not undone, by key."""

    def current(self) -> Subject | None:
        """The subject to be answered next; None when none is left."""
        while not self._waiting:
            subject = next(self._subjects, None)
            if subject is None:
                return None
            if _ids(subject) not in self._done:
                self._waiting.append(subject)
        return self._waiting[-1]

    def answer(self, key: str) -> bool:
        """Store the answer that a key gives for the current subject; False if the key has no meaning here."""
        subject = self.current()
        if key == UNDO:
            return self._undo()
        feedback = None if subject is None else self._meaning(subject, key)
        if subject is None or feedback is None:
            return False
        earlier = self._stored[feedback.experience_id, feedback.key]
        if earlier:  # equal feedback would be one row: only the first would be stored
            feedback = replace(feedback, text=f"{feedback.text or ''} {_AGAIN} {earlier}".strip())
        self._store(feedback)
        self._waiting.pop()
        self._answers.append(_Answer(subject, feedback))
        self.counts[feedback.key] += 1
        return True

    def close(self) -> int:
        """Store the choices as preference pairs; returns how many were new. A second call stores none."""
        return store_preferred(self._buffer, self._author)

    def _meaning(self, subject: Subject, key: str) -> Feedback | None:
        left, right = _ids(subject)
        if key == SKIP:
            return Feedback(left, self._author, FeedbackKey.SKIPPED, text=right or "")
        if right is None:
            return Feedback(left, self._author, FeedbackKey.SCORE, float(key)) if key in RATINGS else None
        if key not in (LEFT, RIGHT):
            return None
        chosen, rejected = (left, right) if key == LEFT else (right, left)
        return Feedback(chosen, self._author, FeedbackKey.PREFERRED, 1.0, rejected)

    def _undo(self) -> bool:
        if not self._answers:
            return False
        last = self._answers.pop()
        self._store(withdrawal(last.feedback, self._stored[last.feedback.experience_id, last.feedback.key]))
        self.counts[last.feedback.key] -= 1
        self._waiting.append(last.subject)
        return True

    def _store(self, feedback: Feedback) -> None:
        self._buffer.add_feedback([feedback])
        self._stored[feedback.experience_id, feedback.key] += 1


def _ids(subject: Subject) -> tuple[str, str | None]:
    return subject.left.experience_id, None if subject.right is None else subject.right.experience_id


def _partner(key: str, text: str | None) -> str | None:
    """The other id of a pair; None for a rating."""
    words = (text or "").split()
    return words[0] if key != FeedbackKey.SCORE and words and not words[0].startswith("rft:") else None
