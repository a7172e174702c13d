"""TRL's preference type: a chosen and a rejected answer; the prompt is a column, or the beginning of both."""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.core.chat import chat, tools
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Message, PreferencePair
from rft_data.core.words import PairSource
from rft_data.exchange.formats.records import (
    PLAIN,
    Choices,
    Format,
    Origin,
    Record,
    Row,
    prompt_id,
    with_metadata,
)
from rft_data.exchange.formats.trl import as_column, text_or_messages, trl_metadata

_SCORES = ("score_chosen", "score_rejected")
_KNOWN = ("prompt", "chosen", "rejected", *_SCORES)


def read_preference(row: Row, origin: Origin) -> Sequence[Record]:
    """A preference pair; a `prompt` text that only repeats the first message of both answers is metadata."""
    chosen, plain = text_or_messages(row.get("chosen"), "assistant", "chosen")
    rejected, same = text_or_messages(row.get("rejected"), "assistant", "rejected")
    if plain != same:
        raise RowError("chosen and rejected are not of one kind; both must be text, or both messages")
    if not chosen or not rejected:
        raise RowError(f"column '{'rejected' if chosen else 'chosen'}' is empty")
    metadata = trl_metadata(row, _KNOWN, plain=plain)
    prompt = _prompt(row.get("prompt"), chosen, rejected, plain=plain)
    if not prompt and row.get("prompt"):
        metadata["prompt"] = row["prompt"]
    return [
        PreferencePair(
            source=PairSource.IMPORT,
            taskset=origin.taskset,
            task_id=prompt_id(origin.taskset, prompt or shared_beginning(chosen, rejected)),
            messages=tuple(prompt),
            chosen=tuple(chosen),
            rejected=tuple(rejected),
            tools=tools(row.get("tools")),
            chosen_score=_score(row, _SCORES[0]),
            rejected_score=_score(row, _SCORES[1]),
            metadata=metadata,
        )
    ]


def _prompt(
    value: Json, chosen: Sequence[JsonObject], rejected: Sequence[JsonObject], *, plain: bool
) -> list[JsonObject]:
    if value is None or value == "":
        return []
    if isinstance(value, str) and not plain:
        repeated = {"role": "user", "content": value}
        if repeated in chosen[:-1] and repeated in rejected[:-1]:
            return []
        raise RowError("prompt is text but chosen and rejected are messages; all must be of one kind")
    if not isinstance(value, str) and plain:
        raise RowError("prompt is messages but chosen and rejected are text; all must be of one kind")
    return [{"role": "user", "content": value}] if plain else chat(value, "column 'prompt'")


def shared_beginning(chosen: Sequence[Message], rejected: Sequence[Message]) -> list[Message]:
    """The messages that both answers begin with."""
    return list(chosen[: _common(chosen, rejected)])


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items two sequences have in common at their beginning."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _score(row: Row, column: str) -> float | None:
    value = row.get(column)
    if value is None or value == "":
        return None
    problem = f"column '{column}' holds {value!r}; a number is needed"
    if not isinstance(value, str | int | float):
        raise RowError(problem)
    try:
        return float(value)
    except ValueError as err:
        raise RowError(problem) from err


def write_preference(record: PreferencePair, _: Choices) -> Row:
    """The prompt (if it is a column), chosen and rejected."""
    plain = record.metadata.get(PLAIN) is True
    row: Row = {}
    if record.messages:
        row["prompt"] = as_column(record.messages, "user", "the prompt", plain=plain)
    row["chosen"] = as_column(record.chosen, "assistant", "chosen", plain=plain)
    row["rejected"] = as_column(record.rejected, "assistant", "rejected", plain=plain)
    for column, score in zip(_SCORES, (record.chosen_score, record.rejected_score), strict=True):
        if score is not None:
            row[column] = score
    if record.tools:
        row["tools"] = [dict(tool) for tool in record.tools]
    images = record.metadata.get("images")
    if images:
        row["images"] = images
    return with_metadata(row, record.metadata, but=("images",))


def explicit(row: Row) -> Row:
    """A written pair with the prompt as a column: the common beginning of both answers, cut as TRL cuts it.

    Raises: RowError if the answers share no beginning, or one is the beginning of the other.
    """
    if "prompt" in row:
        return row
    chosen, rejected = row["chosen"], row["rejected"]
    if not isinstance(chosen, str | list) or not isinstance(rejected, str | list):
        raise RowError("chosen and rejected are neither text nor lists of messages")
    cut = _common(chosen, rejected)
    if isinstance(chosen, str) and chosen[cut - 1 : cut] == " ":
        cut -= 1  # TRL's extract_prompt counts the space to the answer
    if cut <= 0:
        raise RowError("chosen and rejected share no prompt")
    if cut in (len(chosen), len(rejected)):
        raise RowError("one answer is the beginning of the other; a pair needs two answers")
    return {"prompt": chosen[:cut], **row, "chosen": chosen[cut:], "rejected": rejected[cut:]}


def without(row: JsonObject, *columns: str) -> Row:
    """A copy of the row without some columns."""
    return {name: value for name, value in row.items() if name not in columns}


PREFERENCE = Format(
    "trl-preference",
    ("prompt, chosen, rejected (explicit prompt)", "chosen, rejected (prompt inside both)"),
    (frozenset({"chosen", "rejected"}), frozenset({"prompt", "chosen", "rejected"})),
    read_preference,
    write_preference,
    ("preferences",),
    flat=True,
)
