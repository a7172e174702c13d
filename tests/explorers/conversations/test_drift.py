"""A caller whose history is not what was sampled: a short difference is masked, a longer one forks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.explorers.conversations.conftest import CONTEXT, TASK
from tests.explorers.conversations.test_model import CALL, MORE, TOOLS, USER, check

LONG = "".join(f"{n} fine. " for n in range(60))


def played(template: Any, saying: Any, said: str, *, first: str = "the answer is 42.\n\n<|im_end|>") -> Any:
    """The caller has `said` in the place of the first turn."""
    engine, model = saying(template, first, "12<|im_end|>", "30<|im_end|>")

    async def play() -> None:
        await model.chat([USER])
        history = [USER, {"role": "assistant", "content": said}, MORE]
        reply = await model.chat(history)
        await model.chat([*history, reply.message, USER])

    asyncio.run(play())
    return engine, model.rows(TASK, CONTEXT)


@pytest.mark.parametrize(
    "said", ["the answer is 42.", "the answer is 12, fine.", "the answer is 42.\n\n\n\nhow"]
)
def test_short_difference_is_put_into_the_row_without_loss(template_of, saying, said: str) -> None:
    template = template_of("qwen2.5")
    engine, rows = played(template, saying, said)
    (row,) = rows
    start, ids, mask = len(engine.seen[0]), list(row.token_ids), list(row.action_mask)
    assert ids == engine.seen[2] + engine.said[2]
    assert engine.seen[2][: len(engine.seen[1]) + len(engine.said[1])] == engine.seen[1] + engine.said[1]
    kept = mask[start : len(engine.seen[1])].count(1)
    assert 0 < kept < len(engine.said[0])
    assert mask[start:][:kept] == [1] * kept  # what is kept stands at the beginning
    assert ids[start:][:kept] == engine.said[0][:kept]
    assert list(row.logprobs)[start : start + kept] == [-0.1 - 0.01 * i for i in range(kept)]
    assert row.version_spans[0] == (1, start, start + kept)
    text = template.tokenizer.decode(engine.seen[1])
    assert text.endswith(
        f"<|im_start|>assistant\n{said}<|im_end|>\n<|im_start|>user\n\n\nhow are you?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert row.messages[1] == {"role": "assistant", "content": said}
    assert row.metadata == {"history_drift": {"masked": 1}}


@pytest.mark.parametrize(("said", "first"), [("42", "fine.<|im_end|>"), ("0 fine. ", f"{LONG}<|im_end|>")])
def test_long_difference_begins_another_row(template_of, saying, said: str, first: str) -> None:
    engine, (one, two) = played(template_of("qwen2.5"), saying, said, first=first)
    check(one, engine, [0])
    check(two, engine, [1, 2])
    assert two.metadata == {"history_drift": {"forked": 1}}
    assert [message["content"] for message in two.messages][1] == said
    assert two.prompt_messages == 3


def test_fork_in_the_middle_keeps_the_recorded_ids_before_it(template_of, saying) -> None:
    """And trains the shared turn in the first row only."""
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>", "42<|im_end|>", "12<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER])
        await model.chat([USER, first.message, MORE])
        await model.chat([USER, first.message, MORE, {"role": "assistant", "content": "30"}, USER])

    asyncio.run(play())
    one, two = model.rows(TASK, CONTEXT)
    check(one, engine, [0, 1])
    check(two, engine, [2])
    shared = len(engine.seen[0]) + len(engine.said[0])
    assert engine.seen[2][:shared] == engine.seen[0] + engine.said[0]


def test_tool_arguments_are_compared_as_json(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), CALL, "42<|im_end|>")

    async def play() -> None:
        await model.chat([USER], tools=TOOLS)
        function = {"name": "add", "arguments": '{"b":30, "a" : 12}'}
        said = {"role": "assistant", "content": None, "tool_calls": [{"id": "mine", "function": function}]}
        answer = {"role": "tool", "tool_call_id": "mine", "content": "42"}
        await model.chat([USER, said, answer], tools=TOOLS)

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert row.metadata == {}


def test_changed_call_begins_another_row(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), CALL, "42<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER], tools=TOOLS)
        said = {**first.message, "tool_calls": []}
        await model.chat([USER, said, MORE], tools=TOOLS)

    asyncio.run(play())
    one, two = model.rows(TASK, CONTEXT)
    check(one, engine, [0])
    check(two, engine, [1])


def test_another_conversation_is_no_drift(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>", "42<|im_end|>")

    async def play() -> None:
        await asyncio.gather(model.chat([USER]), model.chat([MORE]))

    asyncio.run(play())
    assert [row.metadata for row in model.rows(TASK, CONTEXT)] == [{}, {}]
    assert engine.seen[0] != engine.seen[1]


def test_cancelled_turn_leaves_no_row(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER])
        with pytest.raises(IndexError):  # the engine has nothing more to say
            await model.chat([USER, first.message, MORE])

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0])


def test_a_name_that_the_caller_gives_to_a_turn_is_no_difference(template_of, saying) -> None:
    engine, model = saying(template_of("qwen2.5"), "fine.<|im_end|>", "42<|im_end|>")

    async def play() -> None:
        reply = await model.chat([USER])
        await model.chat([USER, {**reply.message, "name": "helper"}, MORE])

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert row.metadata == {}
