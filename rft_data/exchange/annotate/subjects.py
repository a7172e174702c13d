"""Subjects for annotation: one stored completion to rate, or two of a group to choose from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_experiences
from rft_data.core.filters import And, Compare, Filter, In
from rft_data.core.rows import Experience, Message, PreferencePair
from rft_data.core.words import FeedbackKey, PairSource
from rft_data.exchange.feedback import is_withdrawal
from rft_data.exchange.formats.mining import mined_pair
from rft_data.reading.whole_groups import judgeable, rows_by_group

_ROWS_AT_ONCE = 64
_IDS_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Subject:
    """One completion, or two different ones of a group to the same prompt."""

    left: Experience
    right: Experience | None = None
    """None when `left` is to be rated."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages before the completion."""
        return tuple(self.left.messages[: self.left.prompt_messages])


def ratings(buffer: Buffer, run_id: str | None = None, where: Filter | None = None) -> Iterator[Subject]:
    """Every completion that the filter lets through, in the order stored; holds 64 rows at a time."""
    filter_ = _filter(run_id, where)
    seqs = [seq for b in buffer.batches("experiences", ["seq"], filter_) for seq in b.column(0).to_pylist()]
    for start in range(0, len(seqs), _ROWS_AT_ONCE):
        yield from map(Subject, to_experiences(buffer.take(seqs[start : start + _ROWS_AT_ONCE])))


def comparisons(buffer: Buffer, run_id: str | None = None, where: Filter | None = None) -> Iterator[Subject]:
    """Pairs within each group: its first row with its second, its third with its fourth, and so on.

    Their ids decide which of the two is on the left, so that neither the first nor the better always is. A
    row without a partner, rows of different prompts and equal texts make no pair.
    """
    groups = rows_by_group(buffer, _filter(run_id, where))
    for seqs in groups.batches(1):
        rows = to_experiences(buffer.take(seqs.tolist()))
        for one, other in zip(rows[::2], rows[1::2], strict=False):
            swap = int(content_id(one.experience_id, other.experience_id)[:2], 16) % 2 == 1
            subject = Subject(other, one) if swap else Subject(one, other)
            if preference(subject.left, subject.right or one, "") is not None:
                yield subject


def _filter(run_id: str | None, where: Filter | None) -> Filter:
    base = judgeable(run_id, where)
    return base if where is None else And((base, where))


def preference(chosen: Experience, rejected: Experience, author: str) -> PreferencePair | None:
    """The pair of two rows; None if their prompts differ, one has no answer, or the answers are equal."""
    pair = mined_pair(chosen, rejected)
    return replace(pair, source=PairSource.HUMAN, author=author) if isinstance(pair, PreferencePair) else None


def stored_ids(buffer: Buffer, ids: Sequence[str]) -> set[str]:
    """The ids among `ids` that are stored."""
    found: set[str] = set()
    for start in range(0, len(ids), _IDS_AT_ONCE):
        some = In("experience_id", tuple(ids[start : start + _IDS_AT_ONCE]))
        found.update(buffer.read("experiences", ["experience_id"], some).column(0).to_pylist())
    return found


def stored_experiences(buffer: Buffer, ids: Sequence[str]) -> dict[str, Experience]:
    """Stored experiences by id; those that are not stored are left out."""
    found: dict[str, Experience] = {}
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        some = In("experience_id", tuple(ids[start : start + _ROWS_AT_ONCE]))
        seqs = buffer.read("experiences", ["seq"], some).column("seq").to_pylist()
        found |= {row.experience_id: row for row in to_experiences(buffer.take(seqs))}
    return found


def store_preferred(buffer: Buffer, author: str) -> int:
    """Store the author's choices, less those withdrawn, as preference pairs; returns how many were new.

    A pair whose choice is withdrawn after that stays stored; `exchange.standing.excluded` names it.
    """
    mine = And((Compare("author", "eq", author), Compare("key", "eq", FeedbackKey.PREFERRED)))
    choices: dict[tuple[str, str], None] = {}
    for row in buffer.read("feedback", ["experience_id", "value", "text"], mine).to_pylist():
        if is_withdrawal(row["value"], row["text"]):
            choices = {pair: None for pair in choices if pair[0] != row["experience_id"]}
        elif row["text"]:
            choices[row["experience_id"], row["text"].split()[0]] = None
    rows = stored_experiences(buffer, sorted({name for pair in choices for name in pair}))
    known = [(rows[good], rows[bad]) for good, bad in choices if good in rows and bad in rows]
    pairs = [preference(good, bad, author) for good, bad in known]
    return buffer.add_preferences([pair for pair in pairs if pair is not None])


def as_text(messages: Sequence[Message]) -> str:
    """Chat messages as text for people: `role:` and content of each; a single user message has no role."""
    if len(messages) == 1 and messages[0].get("role") == "user":
        return _content(messages[0])
    return "\n\n".join(f"{message.get('role', '?')}:\n{_content(message)}" for message in messages)


def answer_text(row: Experience) -> str:
    """The text of a completion, or its messages as text when it has none."""
    return row.completion_text or as_text(row.messages[row.prompt_messages :])


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    rest = {name: value for name, value in message.items() if name != "role"}
    return json.dumps(rest, ensure_ascii=False)
