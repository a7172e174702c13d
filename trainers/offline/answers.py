"""Answers as token ids: which tokens the model is to learn, and which only stand around them.

Rows that an engine sampled keep their ids and their action mask. Only what was never tokenised (experts,
imports, people) is rendered here, once. Neither reads a buffer nor makes batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rft_data.core.errors import RowError
from rft_data.core.rows import Message, PreferencePair
from rft_data.exchange.formats.records import PLAIN
from trainers.offline.stored_pairs import prompt_of, shared_length


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and an answer to it, T tokens together."""

    ids: Sequence[int]
    """T token ids."""
    mask: Sequence[int]
    """T values: 1 where the assistant wrote the token, 0 on the prompt and on what the environment said."""
    prompt_length: int
    """Tokens before the first that the mask keeps."""


AnswerPair = tuple[Answer, Answer]
"""(the better, the worse) answer to one prompt."""


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


def spoken_answer(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    split: int,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    plain: bool = False,
) -> Answer:
    """Messages as ids; every message of the assistant from place `split` on is the answer.

    Rendered by the model's chat template as TRL does it: an answer begins where the conversation leaves
    what the template would have prompted with. `plain`: texts, joined without a template.

    Raises: RowError when there is no answer, or the tokenizer has no chat template.
    """
    places = [i for i, message in enumerate(messages) if i >= split and message["role"] == "assistant"]
    if not places or places[-1] != len(messages) - 1:
        raise RowError("its messages do not end with an assistant's answer to train on")
    if plain:
        return _plain_answer(tokenizer, messages, split)
    if tokenizer.chat_template is None:
        raise RowError("the model's tokenizer has no chat template to write its messages with")

    def ids_of(part: Sequence[Message], *, prompting: bool) -> list[int]:
        rendered: list[int] = tokenizer.apply_chat_template(
            [dict(m) for m in part],
            tools=None if tools is None else [dict(tool) for tool in tools],
            add_generation_prompt=prompting,
            return_dict=False,
        )
        return rendered

    whole = ids_of(messages, prompting=False)
    mask = [0] * len(whole)
    for place in places:
        start = shared_length(ids_of(messages[:place], prompting=True), whole)
        last = place == len(messages) - 1
        end = len(whole) if last else shared_length(ids_of(messages[: place + 1], prompting=False), whole)
        mask[start:end] = [1] * (end - start)
    return Answer(whole, mask, mask.index(1) if 1 in mask else len(mask))


def _plain_answer(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], split: int) -> Answer:
    prompt = "".join(message["content"] for message in messages[:split])
    text = prompt + "".join(message["content"] for message in messages[split:])
    end = tokenizer.eos_token or ""
    whole = tokenizer(text if text.endswith(end) else text + end)["input_ids"]
    start = shared_length(tokenizer(prompt)["input_ids"], whole) if prompt else 0
    return Answer(whole, [0] * start + [1] * (len(whole) - start), start)


def spoken_row(tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any]) -> Answer:
    """The answer of an EXPERIENCES row without token ids, its JSON columns still as text.

    Raises: RowError naming the row.
    """
    messages, tools = json.loads(row["messages"]), row.get("tools")
    try:
        return spoken_answer(
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


def answer_pair(
    tokenizer: PreTrainedTokenizerBase, pair: PreferencePair, stored: Mapping[str, Answer]
) -> AnswerPair:
    """Both answers of a pair: by the stored ids of the experiences it came from, else by its messages.

    Args: stored: answers by experience id.
    Raises: RowError when an answer is missing, the two are the same tokens or stand behind different
        prompts, or no token of one counts.
    """
    better = stored.get(pair.chosen_experience_id or "") or _spoken_half(tokenizer, pair, pair.chosen)
    worse = stored.get(pair.rejected_experience_id or "") or _spoken_half(tokenizer, pair, pair.rejected)
    if list(better.ids) == list(worse.ids):
        raise RowError("both answers are the same tokens")
    if not any(better.mask) or not any(worse.mask):
        raise RowError("an answer has no token that the assistant wrote")
    shared = min(better.prompt_length, worse.prompt_length)
    if list(better.ids[:shared]) != list(worse.ids[:shared]):
        raise RowError("its answers stand behind different prompts (stored ids against rendered text)")
    return better, worse


def _spoken_half(
    tokenizer: PreTrainedTokenizerBase, pair: PreferencePair, answer: Sequence[Message]
) -> Answer:
    prompt = prompt_of(pair)
    spoken = [*prompt, *answer] if pair.messages else list(answer)
    return spoken_answer(
        tokenizer, spoken, len(prompt), tools=pair.tools, plain=pair.metadata.get(PLAIN) is True
    )
