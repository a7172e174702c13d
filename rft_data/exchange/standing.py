"""Statements of people about experiences, and those that still stand.

Feedback is only added. An author's withdrawal takes back what he said before it under its key on its row; of
choices between two rows, one pair's.
Under the keys that decide something (quarantine, retire_task), the newest standing value decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from rft_data.core.canonical import content_id
from rft_data.core.filters import Compare, In
from rft_data.core.reader import BufferReader
from rft_data.core.rows import TaskKey
from rft_data.core.words import FeedbackKey
from rft_data.exchange.feedback import fold, is_withdrawal, partner, withdrawn_partner

TAG_PREFIX = "tag:"
"""A tag is feedback of value 1 under this prefix and its name, so that `feedback_mapper` can read one tag."""
_COLUMNS = ["feedback_id", "experience_id", "author", "key", "value", "text", "created_at"]
_FOLDED = ["experience_id", "author", "value", "text", "created_at"]


@dataclass(frozen=True, slots=True)
class Word:
    """A row of feedback that is no withdrawal."""

    feedback_id: str
    experience_id: str
    author: str
    key: str
    value: float | None
    text: str | None
    created_at: datetime
    taken_back: datetime | None = None
    """When its author withdrew it; None: it stands."""

    @property
    def partner(self) -> str:
        """The experience beside which a choice was made; empty for what is no choice."""
        return partner(self.key, self.text)


@dataclass(frozen=True, slots=True)
class Excluded:
    """Rows and choices that people excluded from training."""

    rows: frozenset[str]
    """Ids of experiences: in quarantine, or corrected answers whose author took the correction back."""
    choices: frozenset[tuple[str, str, str]]
    """(better, worse, author) of choices that their author took back."""


def words(feedback: pa.Table) -> list[Word]:
    """The rows of feedback in the order of their time, each with when it was taken back.

    Args: feedback: at least all rows of every (experience, author, key) that it has a row of.
    """
    found: list[Word] = []
    standing: dict[tuple[str, str, str], list[int]] = {}
    rows = sorted(feedback.select(_COLUMNS).to_pylist(), key=lambda row: row["created_at"])
    for row in rows:
        about = (row["experience_id"], row["author"], row["key"])
        if not is_withdrawal(row["value"], row["text"]):
            standing.setdefault(about, []).append(len(found))
            found.append(Word(**row))
            continue
        other = withdrawn_partner(row["text"])
        for place in standing.pop(about, ()):
            one = found[place]
            if other and one.partner != other:
                standing.setdefault(about, []).append(place)
                continue
            found[place] = Word(
                one.feedback_id, *about[:2], one.key, one.value, one.text, one.created_at, row["created_at"]
            )
    return found


def said(store: BufferReader, keys: Sequence[str]) -> list[Word]:
    """Everything said under some keys, in the order of its time."""
    return words(store.read("feedback", _COLUMNS, In("key", tuple(keys))))


def excluded(store: BufferReader) -> Excluded:
    """Rows and choices that people exclude from training, as of now."""
    edits = said(store, [FeedbackKey.EDIT])
    back = {corrected_id(word) for word in edits if word.taken_back is not None}
    stands = {corrected_id(word) for word in edits if word.taken_back is None}
    choices: dict[tuple[str, str, str], bool] = {}
    for word in said(store, [FeedbackKey.PREFERRED]):
        if partner := (word.text or "").split():
            choices[word.experience_id, partner[0], word.author] = word.taken_back is not None
    return Excluded(
        frozenset(quarantined(store) | (back - stands)),
        frozenset(choice for choice, gone in choices.items() if gone),
    )


def quarantined(store: BufferReader) -> set[str]:
    """Ids of the experiences that are in quarantine by a person's word."""
    rows = store.read("feedback", _FOLDED, Compare("key", "eq", FeedbackKey.QUARANTINE))
    newest = fold(rows, "last")
    pairs = zip(newest.ids.to_pylist(), newest.values, strict=True)
    return {name for name, value in pairs if value > 0}


def retired_tasks(store: BufferReader, before: datetime | None = None) -> dict[TaskKey, bool]:
    """Tasks about which people ever said `retire_task`, and whether they are retired now.

    Args: before: only what was said earlier counts.
    """
    found = said(store, [FeedbackKey.RETIRE_TASK])
    if before is not None:
        found = [word for word in found if word.created_at < before]
    ids = tuple(sorted({word.experience_id for word in found}))
    columns = ["experience_id", "taskset", "task_id"]
    rows = store.read("experiences", columns, In("experience_id", ids)).to_pylist() if ids else []
    tasks = {row["experience_id"]: TaskKey(row["taskset"], row["task_id"]) for row in rows}
    retired: dict[TaskKey, bool] = {}
    for word in found:
        if word.experience_id in tasks:
            key = tasks[word.experience_id]
            stands = word.taken_back is None or (before is not None and word.taken_back >= before)
            retired[key] = bool(word.value) if stands else retired.get(key, False)
    return retired


def corrected_id(word: Word) -> str:
    """Id of the experience that holds a corrected answer."""
    return content_id("corrected", word.experience_id, word.author, word.text)
