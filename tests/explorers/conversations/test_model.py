"""A conversation is one row whose ids are what the engine saw and what it sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from explorers.conversations.model import Model
from explorers.conversations.replies import BudgetSpent, ContextOverflow, Reply
from explorers.conversations.template import ChatTemplate
from rft_data.core.engine import Completion, Sampling
from rft_data.core.rows import Experience
from tests.explorers.conversations.conftest import CONTEXT, TASK, SayingEngine

USER = {"role": "user", "content": "hello there"}
SYSTEM = {"role": "system", "content": "fine."}
MORE = {"role": "user", "content": "\n\nhow are you?"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": 30}}\n</tool_call><|im_end|>'


def check(row: Experience, engine: Any, turns: list[int]) -> None:
    """The row is the last prompt and completion; the completions of `turns` are what is trained."""
    ids, mask = list(row.token_ids), list(row.action_mask)
    assert ids == engine.seen[turns[-1]] + engine.said[turns[-1]]
    assert [token for token, on in zip(ids, mask, strict=True) if on] == [
        t for n in turns for t in engine.said[n]
    ]
    wanted = {}
    for n in turns:
        start = len(engine.seen[n])
        assert ids[:start] == engine.seen[n]
        wanted |= {start + i: -0.1 * (n + 1) - 0.01 * i for i in range(len(engine.said[n]))}
    assert [n for n, on in enumerate(mask) if on] == list(wanted)
    assert list(row.logprobs) == [wanted.get(n, 0.0) for n in range(len(ids))]
    assert list(row.version_spans) == [
        (n + 1, len(engine.seen[n]), len(engine.seen[n]) + len(engine.said[n])) for n in turns
    ]
    assert row.prompt_length == len(engine.seen[turns[0]])


@pytest.mark.parametrize("family", ["qwen2.5", "llama3", "gemma"])
def test_linear_conversation_is_one_row_equal_to_the_template(template_of, saying, family: str) -> None:
    template = template_of(family)
    end = {"qwen2.5": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}[family]
    engine, model = saying(template, f"fine.{end}", f"12 + 30{end}", f"= 42{end}")

    async def play() -> list[dict[str, Any]]:
        messages = [SYSTEM, USER]
        for _ in range(3):
            reply = await model.chat(messages)
            messages = [*messages, reply.message, MORE]
        return messages

    messages = asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1, 2])
    whole = template.text(messages[:-1], None, opened=False)
    written = template.tokenizer.decode(row.token_ids)
    assert whole.startswith(written)
    assert whole.removeprefix(written) in ("", "\n")
    assert list(row.messages) == messages[:-1]
    assert (row.prompt_messages, row.completion_text, row.finish_reason) == (2, "= 42", "stop")


def test_turn_cut_at_max_tokens_gets_its_end_token_without_loss(template_of, saying) -> None:
    template = template_of("qwen2.5")
    engine, model = saying(template, ("fine. h", "length"), "ello<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER])
        assert (first.content, first.finish_reason) == ("fine. h", "length")
        await model.chat([USER, first.message, MORE])

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    text = template.tokenizer.decode(engine.seen[1])
    assert text.endswith(
        "fine. h<|im_end|>\n<|im_start|>user\n\n\nhow are you?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_no_token_merges_over_the_boundary(template_of, saying) -> None:
    """The template has no end token, and a line break after the turn merges with one inside it."""
    template = template_of("{%- for m in messages %}{{ m.content + '\n' }}{%- endfor %}")
    engine, model = saying(template, ("fine.\n", "stop"), ("42", "stop"))

    async def play() -> None:
        first = await model.chat([USER])
        await model.chat([USER, first.message, USER])

    asyncio.run(play())
    assert template.ids("fine.\n\n") != template.ids("fine.\n") + template.ids("\n")
    assert engine.seen[1][len(engine.seen[0]) :] == engine.said[0] + template.ids("\nhello there\n")
    check(model.rows(TASK, CONTEXT)[0], engine, [0, 1])


def test_tool_calls_and_answers_are_recorded(template_of, saying) -> None:
    template = template_of("qwen2.5")
    engine, model = saying(template, CALL, "42<|im_end|>")

    async def play() -> None:
        reply = await model.chat([USER], tools=TOOLS)
        (call,) = reply.tool_calls
        assert (call.name, call.arguments) == ("add", {"a": 12, "b": 30})
        answer = {"role": "tool", "tool_call_id": call.id, "content": "42"}
        await model.chat([USER, reply.message, answer], tools=TOOLS)

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert [message["role"] for message in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 12, "b": 30}}
    assert row.tools == TOOLS
    between = template.tokenizer.decode(engine.seen[1][len(engine.seen[0]) + len(engine.said[0]) :])
    assert between == (
        "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_branches_share_a_turn_and_train_it_once(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>", "42<|im_end|>", "12<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER])
        await asyncio.gather(*(model.chat([USER, first.message, MORE]) for _ in range(2)))

    asyncio.run(play())
    first, second = model.rows(TASK, CONTEXT)
    check(first, engine, [0, 1])
    check(second, engine, [2])
    assert (first.turn, second.turn) == (0, 1)
    assert second.prompt_messages == 3


def test_one_row_for_each_step(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>", "42<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER])
        await model.chat([USER, first.message, MORE])

    asyncio.run(play())
    rows = model.rows(TASK, CONTEXT, step_wise=True)
    for n, row in enumerate(rows):
        check(row, engine, [n])
    assert [row.turn for row in rows] == [0, 1]
    assert len({row.experience_id for row in rows}) == 2


def test_budget_ends_the_rollout_with_a_type_and_keeps_its_rows(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>", budget=5)

    async def play() -> None:
        first = await model.chat([USER])
        assert engine.sampling[0].max_tokens == 5
        model._budget = model.sampled
        with pytest.raises(BudgetSpent, match="budget"):
            await model.chat([USER, first.message, MORE])

    asyncio.run(play())
    check(model.rows(TASK, CONTEXT)[0], engine, [0])


def test_plain_completions_go_on_with_their_row(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), ("fine. ", "length"), ("42", "length"))

    async def play() -> None:
        first = await model.complete("hello")
        await model.complete("hello" + first.content + " there")

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert engine.seen[1] == engine.seen[0] + engine.said[0] + model._template.ids(" there")


@pytest.mark.parametrize(
    ("said", "stop", "between"),
    [
        ("fine.<|im_end|>", (), "\n<|im_start|>user"),
        ("fine.<|im_end|>", ("<|im_end|>",), "\n<|im_start|>user"),
        ("fine.", ("fine.",), "<|im_end|>\n<|im_start|>user"),
        ("fine.<|im_start|>", ("<|im_start|>",), "<|im_end|>\n<|im_start|>user"),
    ],
)
def test_turn_ended_by_a_stop_string_gets_its_end_token(template_of, saying, said, stop, between) -> None:
    template = template_of("qwen2.5")
    engine, model = saying(template, said, "42<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER], stop=stop)
        await model.chat([USER, first.message, MORE])

    asyncio.run(play())
    check(model.rows(TASK, CONTEXT)[0], engine, [0, 1])
    assert template.tokenizer.decode(engine.seen[1]).partition(said)[2].startswith(between)
    assert [one.stop for one in engine.sampling] == [stop, ()]


class Waiting(SayingEngine):
    """Takes its time; a prompt that comes after `room` others overflows."""

    room = 9

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        if len(self.seen) >= self.room:
            raise ContextOverflow("no room")
        given = await super().generate(prompt_ids, sampling)
        await asyncio.sleep(0.01)
        return given


def waiting(template: ChatTemplate, *texts: str, **changes: Any) -> tuple[Waiting, Model]:
    engine = Waiting(template.tokenizer, texts)
    return engine, Model(engine, template, Sampling(64), **changes)


@pytest.mark.parametrize("step_wise", [True, False])
def test_a_turn_under_way_is_no_row_yet(template_of, step_wise: bool) -> None:
    engine, model = waiting(template_of("qwen2.5"), "fine.<|im_end|>", "12<|im_end|>")
    engine.room = 2

    async def play() -> list[Experience]:
        reply = await model.chat([USER])
        history = [USER, reply.message, MORE]
        with pytest.raises(ContextOverflow):
            await asyncio.gather(model.chat(history), model.chat([*history, reply.message, MORE]))
        return model.rows(TASK, CONTEXT, step_wise=step_wise)

    (row,) = asyncio.run(play())
    check(row, engine, [0])
    assert row.messages == [USER, {"role": "assistant", "content": "fine."}]


def test_calls_at_the_same_time_share_the_budget(template_of) -> None:
    texts = ["12 + 30 = 42. the answer"] * 4
    engine, model = waiting(template_of("qwen2.5"), *texts, budget=100)

    async def play() -> list[Any]:
        calls = [model.chat([USER], max_tokens=most) for most in (40, 40, 40, 40)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(play())
    assert [sampling.max_tokens for sampling in engine.sampling] == [40, 40, 20]
    assert [type(one) for one in found] == [Reply, Reply, Reply, BudgetSpent]
    assert model.sampled == sum(map(len, engine.said))


def test_the_end_of_a_budget_bounds_min_tokens_too(template_of) -> None:
    template = template_of("qwen2.5")
    engine = SayingEngine(template.tokenizer, ["12"])
    model = Model(engine, template, Sampling(64, min_tokens=8), budget=3)
    asyncio.run(model.chat([USER]))
    assert (engine.sampling[0].max_tokens, engine.sampling[0].min_tokens) == (3, 3)


def test_a_call_for_no_tokens_is_a_mistake_and_no_spent_budget(template_of, saying) -> None:
    _, model = saying(template_of("qwen2.5"), "12")
    with pytest.raises(ValueError, match="max_tokens is 0"):
        asyncio.run(model.chat([USER], max_tokens=0))


def test_what_a_caller_does_to_its_messages_changes_no_row(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), CALL, "42<|im_end|>")
    user = {"role": "user", "content": "hello there"}

    async def play() -> None:
        reply = await model.chat([user], tools=TOOLS)
        reply.tool_calls[0].arguments["a"] = 13  # type: ignore[index]
        history = [user, reply.message, {"role": "tool", "content": "42"}]
        await model.chat(history, tools=TOOLS)
        reply.message["tool_calls"][0]["function"]["arguments"].clear()
        user["content"] = "changed"

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert row.messages[0] == USER
    assert row.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 12, "b": 30}
