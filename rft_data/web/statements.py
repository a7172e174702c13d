"""People's statements about a run's experiences, newest first, and whether they still count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft_data.buffer import Buffer
from rft_data.core.filters import Compare, In
from rft_data.core.stored_rows import ExperienceRow
from rft_data.core.words import FeedbackKey
from rft_data.exchange.agreement import COMPARED, Agreement, agreements
from rft_data.exchange.annotate.corrections import correctable
from rft_data.exchange.standing import Word, said, words
from rft_data.run.status import stored_recipe
from rft_data.web.feedback_effects import Recipe, where_it_counts
from rft_data.web.subjects import Subject

NEWEST = 2_000
"""Rows of feedback that are looked at."""
LINES = 200
"""Words of a page."""


@dataclass(frozen=True, slots=True)
class Line:
    """A word, and the row number of what it is about."""

    word: Word
    seq: int | None
    """None: the row is lost."""


@dataclass(frozen=True, slots=True)
class Said:
    """The newest words in a buffer."""

    lines: tuple[Line, ...]
    total: int
    """Rows of feedback in the buffer, withdrawals too."""
    authors: Mapping[str, int]
    """Words that stand by author, of the newest rows."""
    keys: Mapping[str, int]
    """The same by key."""
    agreements: Sequence[Agreement]
    counts: Mapping[str, Sequence[str]]
    """Places where words under each key of the lines count."""


def newest_said(buffer: Buffer, subject: Subject, author: str, about: str) -> Said:
    """The newest words. Args: author, about: only of this author, under this key; empty: of all."""
    found = words(buffer.tail("feedback", NEWEST))
    standing = [word for word in found if word.taken_back is None]
    chosen = [
        word
        for word in reversed(found)
        if (not author or word.author == author) and (not about or word.key == about)
    ][:LINES]
    ids = tuple({word.experience_id for word in chosen})
    rows = buffer.read("experiences", ["experience_id", "seq"], In("experience_id", ids)).to_pylist()
    seqs = {row["experience_id"]: row["seq"] for row in rows}
    return Said(
        tuple(Line(word, seqs.get(word.experience_id)) for word in chosen),
        buffer.counts()["feedback"],
        dict(Counter(word.author for word in standing).most_common()),
        dict(Counter(word.key for word in standing).most_common()),
        agreements(said(buffer, COMPARED)),
        counts(subject, [word.key for word in chosen]),
    )


def said_about(buffer: Buffer, experience_id: str) -> list[Word]:
    """Every word about one experience, oldest first."""
    return words(buffer.read("feedback", None, Compare("experience_id", "eq", experience_id)))


def about_row(buffer: Buffer, subject: Subject, row: ExperienceRow) -> dict[str, object]:
    """Content of the view of a row: the words said, where words count, and the answer to be corrected."""
    said_of_it = said_about(buffer, row["experience_id"])
    own = [FeedbackKey.THUMB, FeedbackKey.SCORE, FeedbackKey.EDIT, FeedbackKey.PREFERRED]
    keys = [*own, FeedbackKey.QUARANTINE, FeedbackKey.RETIRE_TASK, *(word.key for word in said_of_it)]
    completion = json.loads(row["messages"] or "[]")[row["prompt_messages"] :]
    answer = completion[-1]["content"] if correctable(completion) else None
    return {"words": said_of_it, "counts": counts(subject, keys), "answer": answer}


def counts(subject: Subject, keys: Sequence[str]) -> dict[str, list[str]]:
    """Places where words under each key count."""
    recipe = subject_recipe(subject)
    return {key: where_it_counts(recipe, key) for key in dict.fromkeys(keys)}


def subject_recipe(subject: Subject) -> Recipe | None:
    """A run's recipe as it is stored; None of a buffer alone."""
    return None if subject.run_dir is None else stored_recipe(subject.run_dir)
