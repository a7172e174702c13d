"""Traps that other systems fell into, each with its report. Those not here have their test elsewhere:

test_certificate.py: thinking of earlier turns is stripped (verl#6854, prime-rl#1334, ART#726,
tinker-cookbook#142), an empty block of thinking is inserted (TRL#6361), arguments are swallowed
(harbor#2281).
test_model.py: merges over the boundary (slime#2213), more than two turns (prime-rl#1383).
test_exactness.py: decode and encode again (ms-swift#10012).
test_endpoint_model.py: endpoints that return no ids (agent-lightning#262, #44, #250, sglang#18378,
vllm#22587), nothing captured and a reward of 0 (agent-lightning#308).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rft_data.core.errors import RowError
from tests.explorers.conversations.conftest import CONTEXT, TASK
from tests.explorers.conversations.test_model import MORE, TOOLS, USER, check


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': arguments}, indent=2)}\n</tool_call>"


def as_agents_send(message: dict[str, Any], turn: int) -> dict[str, Any]:
    """A turn as programs with wire formats of their own send it back: nothing of it is other content."""
    calls = [
        {
            "id": f"toolu_{turn}",
            "type": "function",
            "index": 0,
            "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"], indent=1)},
        }
        for one in message["tool_calls"]
    ]
    parts = [{"type": "text", "text": message["content"], "cache_control": None}]
    return {"role": "assistant", "content": parts if message["content"] else None, "tool_calls": calls}


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
def test_an_agent_that_writes_history_in_its_own_way_makes_no_false_forks(
    template_of, saying, family
) -> None:
    """slime#2288: eight rollouts became 64 samples."""
    thought = "<think>\nwhy\n</think>\n\n" if family == "qwen3" else ""
    says = [f"{thought}fine.\n{call(a=n)}<|im_end|>" for n in range(8)]
    engine, model = saying(template_of(family), *says)

    async def play() -> None:
        messages: list[dict[str, Any]] = [USER]
        for turn in range(8):
            reply = await model.chat(messages, tools=TOOLS)
            answer = {"role": "tool", "tool_call_id": f"toolu_{turn}", "content": str(turn)}
            messages = [*messages, as_agents_send(dict(reply.message), turn), answer]

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, list(range(8)))


def test_a_call_of_many_lines_is_parsed_and_its_tokens_are_kept(template_of, saying) -> None:
    """NeMo-Gym#1787: 48 of 48 turns failed, for the parser dropped such calls."""
    said = call(a=12, text="two\nlines")
    engine, model = saying(template_of("qwen2.5"), f"{said}<|im_end|>", "42<|im_end|>")

    async def play() -> None:
        reply = await model.chat([USER], tools=TOOLS)
        assert reply.tool_calls[0].arguments == {"a": 12, "text": "two\nlines"}
        assert reply.tool_calls[0].text == said
        await model.chat([USER, reply.message, {"role": "tool", "content": "42"}], tools=TOOLS)

    asyncio.run(play())
    check(model.rows(TASK, CONTEXT)[0], engine, [0, 1])


def test_another_end_token_than_the_template_has_ends_the_turn_once(template_of, saying) -> None:
    """NeMo-RL#1337: the end of a turn is spliced by ids, not by text."""
    template = template_of("qwen2.5")
    engine, model = saying(template, "fine.<|endoftext|>", "42<|im_end|>")

    async def play() -> None:
        reply = await model.chat([USER])
        assert reply.content == "fine."
        await model.chat([USER, reply.message, MORE])

    asyncio.run(play())
    check(model.rows(TASK, CONTEXT)[0], engine, [0, 1])
    assert "fine.<|endoftext|>\n<|im_start|>user" in template.tokenizer.decode(engine.seen[1])


@pytest.mark.parametrize("said", ["", "<tool_call>\n{", '{"answer": ', "<think>\nand so on"])
def test_an_answer_that_cannot_be_parsed_is_a_row_all_the_same(template_of, saying, said: str) -> None:
    """agent-lightning#308: structured output gave no triplets, and a reward of 0."""
    engine, model = saying(template_of("qwen3"), f"{said}<|im_end|>")
    asyncio.run(model.chat([USER], tools=TOOLS))
    check(model.rows(TASK, CONTEXT)[0], engine, [0])


@pytest.mark.slow
def test_each_text_is_tokenised_once(template_of, saying) -> None:
    """torchtitan#2769: the cost of masks was quadratic in the turns."""
    template = template_of("qwen2.5")
    engine, model = saying(template, *["fine.<|im_end|>"] * 30)
    tokenised: list[str] = []

    def ids(text: str, special: bool) -> list[int]:
        tokenised.append(text)
        return template.tokenizer(text, add_special_tokens=special)["input_ids"]

    template._ids = ids

    async def play() -> None:
        messages: list[Any] = [USER]
        for turn in range(30):
            reply = await model.chat(messages)
            messages = [*messages, reply.message, {"role": "user", "content": f"text {turn}"}]

    asyncio.run(play())
    assert len(tokenised) == 30
    assert all(sum(f"text {turn}<" in text for text in tokenised) == 1 for turn in range(29))
    assert len("".join(tokenised)) < 30 * 120
    check(model.rows(TASK, CONTEXT)[0], engine, list(range(30)))


def test_a_role_that_the_template_refuses_ends_typed_and_keeps_the_turns_before(template_of, saying) -> None:
    """miles#1919: such a role collapsed the trajectory to one turn."""
    engine, model = saying(template_of("gemma"), "fine.<end_of_turn>", "42<end_of_turn>")

    async def play() -> None:
        first = await model.chat([USER])
        second = await model.chat([USER, first.message, MORE])
        with pytest.raises(RowError, match=r"cannot render the roles .*must alternate"):
            await model.chat([USER, first.message, MORE, second.message, {"role": "tool", "content": "1"}])

    asyncio.run(play())
    check(model.rows(TASK, CONTEXT)[0], engine, [0, 1])
    assert len(model.rows(TASK, CONTEXT)) == 1
