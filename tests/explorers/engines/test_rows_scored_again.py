"""Rows of several turns on real engines: a plain forward of the stored ids gives the stored logprobs."""

from __future__ import annotations

import asyncio
import string
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from explorers.conversations.model import Model
from explorers.conversations.template import ChatTemplate
from rft_data.core.engine import Sampling
from rft_data.core.rows import Experience, Task
from rft_data.core.words import TemplatePolicy
from rft_data.core.workflow import RolloutContext
from tests.explorers.conftest import END, ONE_MODEL, VOCABULARY

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
CTX = RolloutContext("run", "g", 0, 0, "e0", "rollout", Sampling(6))
TASK = Task("t", ({"role": "user", "content": "go"},))


def letters() -> PreTrainedTokenizerFast:
    """One token for each character, as many as the tiny models have; the turn ends with their end token."""
    special = {"unk_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    assert [*special].index("eos_token") == END
    known = [*special.values(), *sorted(set(string.printable) - set("\t\r\x0b\x0c"))][:VOCABULARY]
    core = Tokenizer(
        models.WordLevel({text: place for place, text in enumerate(known)}, special["unk_token"])
    )
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE, **special)


def largest_error(bench: Any, row: Experience, names: dict[int, str]) -> float:
    """Of the sampled tokens, each scored by the weights that sampled it."""
    errors = [0.0]
    for version, start, end in row.version_spans:
        table = bench.logprobs(names[version], list(row.token_ids))[start - 1 : end - 1]
        want = table.gather(-1, torch.tensor(row.token_ids[start:end])[:, None])[:, 0]
        errors.append(float((want - torch.tensor(row.logprobs[start:end])).abs().max()))
    return max(errors)


@pytest.mark.slow
@ONE_MODEL
def test_rows_of_several_turns_branches_and_weights_are_scored_again_to_their_logprobs(bench: Any) -> None:
    first, second = bench.ref("a"), bench.ref("b")
    bench.engine.load_weights(first)
    names = {first.version: "a", second.version: "b"}
    model = Model(bench.engine, ChatTemplate(letters()), CTX.sampling, policy=TemplatePolicy.KEEP_THINKING)

    async def turns(messages: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
        for _ in range(number):
            reply = await model.chat(messages)
            messages = [*messages, dict(reply.message), {"role": "user", "content": "more"}]
        return messages

    async def play() -> None:
        begun = await turns([{"role": "user", "content": "go"}], 2)
        await bench.engine.swap_weights(second)
        branch = [*begun[:-1], {"role": "user", "content": "else"}]
        await asyncio.gather(turns(begun, 1), turns(branch, 1), turns([{"role": "user", "content": "x"}], 2))

    asyncio.run(play())
    rows = model.rows(TASK, CTX)
    assert [{names[version] for version, _, _ in row.version_spans} for row in rows] == [
        {"a", "b"},
        {"b"},
        {"b"},
    ]
    assert sum(end - start for row in rows for _, start, end in row.version_spans) == model.sampled
    assert max(largest_error(bench, row, names) for row in rows) <= 1e-4
