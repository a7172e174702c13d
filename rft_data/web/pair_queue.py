"""A queue of pairs of rollouts: people say which of the two is better, and their answers are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.filters import In, Not
from rft_data.core.reader import BufferReader
from rft_data.core.rows import Experience, Feedback, PreferencePair, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.annotate.session import LEFT, SKIP
from rft_data.exchange.annotate.subjects import (
    answer_text,
    as_text,
    comparisons,
    preference,
    stored_experiences,
)
from rft_data.exchange.feedback import withdrawal
from rft_data.exchange.standing import Word, said
from rft_data.web.claims import Claims
from rft_data.web.writing import Writer

Write = Callable[[Callable[[Writer], None]], None]
_ANSWERS = (FeedbackKey.PREFERRED, FeedbackKey.SKIPPED)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, without their rewards; their ids decide which is left."""

    left: str
    """Experience id."""
    right: str
    prompt: str
    left_text: str
    right_text: str


class Queue:
    """The pairs of one buffer, each to be answered by `people` authors."""

    def __init__(self, buffer: Buffer, write: Write, claims: Claims, people: int = 1) -> None:
        """Args: write: lets an act write to the buffer."""
        self._buffer = buffer
        self._write = write
        self._claims = claims
        self._people = people

    def next_pair(self, author: str) -> Pair | None:
        """The first pair that still needs this author, claimed for him; None when none is left."""
        answers = _answers(self._buffer)
        done = {name for item in answers if not self._room(answers, item, author) for name in item.split(" ")}
        open_rows = Not(In("experience_id", tuple(sorted(done)))) if done else None
        for subject in comparisons(self._buffer, where=open_rows):
            if subject.right is None:
                continue
            left, right = subject.left.experience_id, subject.right.experience_id
            item = _item(left, right)
            if not self._room(answers, item, author):
                continue
            if not self._claims.take(item, author, self._room(answers, item, author)):
                continue
            if not self._room(_answers(self._buffer), item, author):  # answered since it was looked at
                self._claims.release(item, author)
                continue
            texts = (as_text(subject.prompt), answer_text(subject.left), answer_text(subject.right))
            return Pair(left, right, *texts)
        return None

    def answer(self, author: str, left: str, right: str, answer: str) -> None:
        """Store an answer to a pair: as feedback and, if one is preferred, as a preference pair.

        Args: answer: as a key of `rft data annotate`: a for the left one, b for the right one, s to skip.
        Raises: RowError unless the two make a pair that still needs this author.
        """
        item = _item(left, right)
        rows = stored_experiences(self._buffer, [left, right])
        if len(rows) < 2 or preference(rows[left], rows[right], author) is None:
            raise RowError(
                f"'{left}' and '{right}' are no two stored answers to one prompt; load the page again."
            )
        better, worse = (left, right) if answer == LEFT else (right, left)
        word = Feedback(better, author, FeedbackKey.PREFERRED, 1.0, worse, now())
        if answer == SKIP:
            word = Feedback(left, author, FeedbackKey.SKIPPED, text=right, created_at=now())

        def store(writer: Writer) -> None:
            if not self._room(_answers(writer.store), item, author):
                raise RowError("this pair has an answer already; load the page again.")
            writer.say([word])
            writer.prefer(_pairs(rows[better], rows[worse], word))

        self._write(store)
        self._claims.release(item, author)

    def undo(self, author: str) -> None:
        """Withdraw the author's newest answer, whose pair is then asked again.

        Raises: RowError when there is none.
        """

        def store(writer: Writer) -> None:
            mine = [word for word in said(writer.store, _ANSWERS) if word.author == author]
            standing = [word for word in mine if word.taken_back is None]
            if not standing:
                raise RowError(f"'{author}' has no answer to take back.")
            last = standing[-1]
            writer.say(
                [withdrawal(Feedback(last.experience_id, author, last.key, text=last.text), len(mine))]
            )

        self._write(store)

    def _room(self, answers: Mapping[str, Mapping[str, Word]], item: str, author: str) -> int:
        """How many people a pair still needs; 0 for an author who answered or skipped it."""
        given = answers.get(item, {})
        if author in given:
            return 0
        return self._people - sum(word.key == FeedbackKey.PREFERRED for word in given.values())


def _answers(store: BufferReader) -> dict[str, dict[str, Word]]:
    """The valid answers about each pair, by author."""
    found: dict[str, dict[str, Word]] = {}
    for word in said(store, _ANSWERS):
        partner = (word.text or "").split()
        if word.taken_back is None and partner:
            found.setdefault(_item(word.experience_id, partner[0]), {})[word.author] = word
    return found


def _pairs(better: Experience, worse: Experience, word: Feedback) -> list[PreferencePair]:
    pair = preference(better, worse, word.author)
    return [pair] if pair is not None and word.key == FeedbackKey.PREFERRED else []


def _item(left: str, right: str) -> str:
    """A pair's name, whichever is left."""
    return " ".join(sorted((left, right)))
