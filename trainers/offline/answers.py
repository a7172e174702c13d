"""Answers as token ids with a mask of the tokens that the model is to learn.

Rows that an engine sampled keep their ids and their action mask. Only messages that were never tokenised (of
experts, imports, people) are rendered here. Buffers are not read here, and batches not made.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rft_data.core.errors import RowError
from rft_data.core.images import shows_images
from rft_data.core.rows import Message, PreferencePair
from rft_data.exchange.formats.records import PLAIN
from trainers.offline.stored_pairs import pair_prompt, shared_length

log = logging.getLogger(__name__)

LOST_CALLS = (
    "have tool calls for which the model's chat template has no place: they are not trained on. Take a model "
    "whose template renders tool calls, or leave such rows out."
)
"""The warning about rows and pairs that `loses_calls` finds."""


class StoredRow(TypedDict):
    """Columns of EXPERIENCES that `rendered_row` reads; JSON columns are text."""

    experience_id: str
    messages: str
    prompt_messages: int | None
    tools: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and an answer to it, T tokens together."""

    ids: Sequence[int]
    """T token ids."""
    mask: Sequence[int]
    """T values: 1 where the assistant wrote the token, 0 on the prompt and on the environment's tokens."""
    prompt_length: int
    """Number of tokens before the first one whose mask is 1."""


AnswerPair = tuple[Answer, Answer]
"""(the better answer, the worse answer) to one prompt."""


def stored_answers(table: pa.Table) -> Iterator[Answer | None]:
    """The answers of EXPERIENCES rows by their stored ids; None for a row that has none.

    Raises: RowError when a row's action mask is missing or differs in length from its ids.
    """
    columns = ("experience_id", "token_ids", "action_mask")
    for name, ids, mask in zip(*(table.column(column).to_pylist() for column in columns), strict=True):
        if ids is None:
            yield None
            continue
        if mask is None or len(mask) != len(ids):
            raise RowError(
                f"experience '{name}': its action_mask is missing or differs in length from its token_ids; "
                "filter such rows out."
            )
        yield Answer(ids, mask, mask.index(1) if 1 in mask else len(mask))


def rendered_answer(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    split: int,
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    plain: bool = False,
) -> Answer:
    """Messages as ids; the answer is every message of the assistant from index `split` on.

    The model's chat template renders them, as TRL does it: an answer begins where the whole conversation
    differs from the prompt that the template makes of the messages before it.

    Args: plain: join the texts without a template.

    Raises: RowError when there is no answer, or the tokenizer has no chat template.
    """
    if shows_images(messages):
        raise RowError("its messages show images, which only policy gradients train on")
    places = [i for i, message in enumerate(messages) if i >= split and message["role"] == "assistant"]
    if not places or places[-1] != len(messages) - 1:
        raise RowError("its messages do not end with an assistant's answer to train on")
    if plain:
        return _plain_answer(tokenizer, messages, split)
    if tokenizer.chat_template is None:
        raise RowError("the model's tokenizer has no chat template to write its messages with")

    def rendered(part: Sequence[Message], *, prompting: bool) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            [dict(m) for m in part],
            tools=None if tools is None else [dict(tool) for tool in tools],
            add_generation_prompt=prompting,
            return_dict=False,
        )
        return ids

    whole = rendered(messages, prompting=False)
    mask = [0] * len(whole)
    for place in places:
        start = shared_length(rendered(messages[:place], prompting=True), whole)
        last = place == len(messages) - 1
        end = len(whole) if last else shared_length(rendered(messages[: place + 1], prompting=False), whole)
        mask[start:end] = [1] * (end - start)
    return Answer(whole, mask, mask.index(1) if 1 in mask else len(mask))


def _plain_answer(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], split: int) -> Answer:
    prompt = "".join(message["content"] for message in messages[:split])
    text = prompt + "".join(message["content"] for message in messages[split:])
    end = tokenizer.eos_token or ""
    whole = tokenizer(text if text.endswith(end) else text + end)["input_ids"]
    start = shared_length(tokenizer(prompt)["input_ids"], whole) if prompt else 0
    return Answer(whole, [0] * start + [1] * (len(whole) - start), start)


def rendered_row(tokenizer: PreTrainedTokenizerBase, row: StoredRow) -> Answer:
    """The answer of an EXPERIENCES row without token ids.

    Raises: RowError naming the row.
    """
    messages, tools = json.loads(row["messages"]), row.get("tools")
    try:
        return rendered_answer(
            tokenizer,
            messages,
            row.get("prompt_messages") or 0,
            tools=None if tools is None else json.loads(tools),
            plain=json.loads(row.get("metadata") or "{}").get(PLAIN) is True,
        )
    except RowError as err:
        raise RowError(
            f"experience '{row['experience_id']}' has no token_ids and {err}; filter it out."
        ) from err


def loses_calls(tokenizer: PreTrainedTokenizerBase, said: Sequence[Message], answer: Answer) -> bool:
    """Whether an answer as tokens is without the tool calls that its messages have."""
    names = [
        call.get("function", call).get("name") for message in said for call in message.get("tool_calls") or []
    ]
    if not names:
        return False
    text = str(tokenizer.decode([one for one, kept in zip(answer.ids, answer.mask, strict=True) if kept]))
    return any(str(name) not in text for name in names)


def row_loses_calls(tokenizer: PreTrainedTokenizerBase, row: StoredRow, answer: Answer) -> bool:
    """`loses_calls` of an EXPERIENCES row."""
    return loses_calls(tokenizer, json.loads(row["messages"])[row.get("prompt_messages") or 0 :], answer)


def pair_loses_calls(tokenizer: PreTrainedTokenizerBase, pair: PreferencePair, both: AnswerPair) -> bool:
    """Whether `loses_calls` is so of one of a pair's answers."""
    before = 0 if pair.messages else len(pair_prompt(pair))
    halves = zip((pair.chosen, pair.rejected), both, strict=True)
    return any(loses_calls(tokenizer, said[before:], one) for said, one in halves)


def warn_of_lost_calls(lost: int, of: int) -> None:
    """Say how many rows or pairs lose their tool calls, if any does."""
    if lost:
        log.warning("%d of %d rows %s", lost, of, LOST_CALLS)


def answer_pair(
    tokenizer: PreTrainedTokenizerBase, pair: PreferencePair, stored: Mapping[str, Answer]
) -> AnswerPair:
    """Both answers of a pair: the stored ids of the experiences it came from, else its rendered messages.

    Args: stored: answers by experience id.
    Raises: RowError when an answer is missing, both are the same tokens, they follow different prompts, or
        one of them has no token to train on.
    """
    better = stored.get(pair.chosen_experience_id or "") or _rendered_half(tokenizer, pair, pair.chosen)
    worse = stored.get(pair.rejected_experience_id or "") or _rendered_half(tokenizer, pair, pair.rejected)
    if list(better.ids) == list(worse.ids):
        raise RowError("both answers are the same tokens")
    if not any(better.mask) or not any(worse.mask):
        raise RowError("an answer has no token that the assistant wrote")
    shared = min(better.prompt_length, worse.prompt_length)
    if list(better.ids[:shared]) != list(worse.ids[:shared]):
        raise RowError("its answers stand behind different prompts (stored ids against rendered text)")
    return better, worse


def _rendered_half(
    tokenizer: PreTrainedTokenizerBase, pair: PreferencePair, answer: Sequence[Message]
) -> Answer:
    prompt = pair_prompt(pair)
    messages = [*prompt, *answer] if pair.messages else list(answer)
    return rendered_answer(
        tokenizer, messages, len(prompt), tools=pair.tools, plain=pair.metadata.get(PLAIN) is True
    )
