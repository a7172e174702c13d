"""Corrected answers: each becomes an expert's row, and the better half of a pair with its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.buffer import Buffer
from rft_data.core.rows import Experience, Message, PreferencePair
from rft_data.core.words import FeedbackKey, FinishReason, PairSource, RowSource
from rft_data.exchange.annotate.subjects import store_preferred, stored_experiences, stored_ids
from rft_data.exchange.standing import Word, corrected_id, said

PARENT = "parent_experience_id"
"""Key of the metadata of a corrected row and of its pair: the experience that was corrected."""
_ASSISTANT = "assistant"


def store_corrections(buffer: Buffer) -> int:
    """Store every correction that stands as a row and as a pair; returns how many rows were new.

    A row without messages, or whose completion ends with no assistant's message, has no corrected form.
    """
    standing = [word for word in said(buffer, [FeedbackKey.EDIT]) if word.taken_back is None and word.text]
    known = stored_ids(buffer, [corrected_id(word) for word in standing])
    fresh = [word for word in standing if corrected_id(word) not in known]
    parents = stored_experiences(buffer, sorted({word.experience_id for word in fresh}))
    rows, pairs = [], []
    for word in fresh:
        parent = parents.get(word.experience_id)
        if parent is not None and correctable(parent.messages[parent.prompt_messages :]):
            rows.append(corrected(parent, word))
            pairs.append(_pair(parent, rows[-1], word))
    if rows:
        buffer.add_preferences(pairs)  # first: what has a row is not looked at again
        buffer.append(rows)
    return len(rows)


def store_said(buffer: Buffer) -> int:
    """Store what people chose and corrected, also through a hub, as pairs and rows; returns how many are new.

    For the owner of the buffer: a hub takes feedback in and nothing else of this.
    """
    authors = {word.author for word in said(buffer, [FeedbackKey.PREFERRED]) if word.taken_back is None}
    return store_corrections(buffer) + sum(store_preferred(buffer, author) for author in sorted(authors))


def correctable(completion: Sequence[Message]) -> bool:
    """Whether a completion ends with a text of the assistant, which a correction may replace."""
    last: Mapping[str, object] = completion[-1] if completion else {}
    return last.get("role") == _ASSISTANT and isinstance(last.get("content"), str)


def corrected(parent: Experience, word: Word) -> Experience:
    """The parent's conversation with the corrected text as its last message, as an expert's row."""
    last = {"role": _ASSISTANT, "content": word.text or ""}
    name = corrected_id(word)
    return Experience(
        experience_id=name,
        source=RowSource.EXPERT,
        run_id=parent.run_id,
        taskset=parent.taskset,
        task_id=parent.task_id,
        group_id=f"{parent.run_id}/corrected-{name}",
        explorer_id=word.author,
        messages=(*parent.messages[:-1], last),
        prompt_messages=parent.prompt_messages,
        tools=parent.tools,
        completion_text=word.text or "",
        finish_reason=FinishReason.STOP,
        reward=1.0,
        payloads=parent.payloads,
        metadata=_origin(parent, word),
        created_at=word.created_at,
    )


def _pair(parent: Experience, better: Experience, word: Word) -> PreferencePair:
    return PreferencePair(
        source=PairSource.HUMAN,
        taskset=parent.taskset,
        task_id=parent.task_id,
        messages=tuple(parent.messages[: parent.prompt_messages]),
        chosen=tuple(better.messages[parent.prompt_messages :]),
        rejected=tuple(parent.messages[parent.prompt_messages :]),
        tools=parent.tools,
        chosen_experience_id=better.experience_id,
        rejected_experience_id=parent.experience_id,
        author=word.author,
        metadata=_origin(parent, word),
    )


def _origin(parent: Experience, word: Word) -> dict[str, str]:
    return {PARENT: parent.experience_id, "author": word.author, "feedback_id": word.feedback_id}
