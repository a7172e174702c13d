"""Which of two rollouts is better: a person's choices, one pair after the other."""

from __future__ import annotations

from dataclasses import dataclass

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.exchange.annotate.session import Session, answered
from rft_data.exchange.annotate.subjects import (
    Subject,
    answer_text,
    as_text,
    comparisons,
    preference,
    stored_experiences,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, without their rewards; chance decides which is left."""

    left: str
    """Experience id."""
    right: str
    prompt: str
    left_text: str
    right_text: str


def next_pair(buffer: Buffer, author: str) -> Pair | None:
    """The first pair that the author has neither answered nor skipped; None when none is left."""
    said = answered(buffer, author)
    for subject in comparisons(buffer):
        if subject.right is not None and not said.has(subject):
            left, right = subject.left, subject.right
            texts = (as_text(subject.prompt), answer_text(left), answer_text(right))
            return Pair(left.experience_id, right.experience_id, *texts)
    return None


def store_choice(owned: Buffer, author: str, left: str, right: str, answer: str) -> None:
    """Store an answer to a pair, as feedback and, if one is preferred, as a preference pair.

    Args: answer: as a key of `rft data annotate`: a for the left one, b for the right one, s to skip.
    Raises: RowError unless the two are stored and make a pair.
    """
    rows = stored_experiences(owned, [left, right])
    if len(rows) < 2 or preference(rows[left], rows[right], author) is None:
        raise RowError(
            f"'{left}' and '{right}' are no two stored answers to one prompt; load the page again."
        )
    session = Session(owned, author, [Subject(rows[left], rows[right])])
    if not session.answer(answer):
        raise RowError("this pair has an answer already; load the page again.")
    session.close()
