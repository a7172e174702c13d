"""Weights that are swapped under a live stream, and thinking that vLLM's parser takes out of an answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from transformers import AutoTokenizer

from explorers.capture.capture import Capture
from explorers.capture.gate import capturing
from explorers.capture.listening import listening
from explorers.capture.openai_app import openai_app
from explorers.conversations.template import ChatTemplate
from explorers.engines.vllm_engine import VllmEngine
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError
from rft_data.core.rows import WeightRef
from rft_data.core.words import Drift, TemplatePolicy
from tests.explorers.capture.chains import CALL, ROOM, chain_model, published, thinking_tokenizer
from tests.explorers.capture.conftest import Loop, Recorded
from tests.explorers.capture.test_frameworks import CALLS, TURNS, Agent, agentscope, openai_agents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ASK: dict[str, Any] = {"role": "user", "content": "2 + 2?"}
TOKENS = 60


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[WeightRef]:
    """One that thinks `1` and says `2`, one that says `1` for ever, one that says `2` for ever, and one that
    thinks `1` and calls a tool."""
    folder = tmp_path_factory.mktemp("chains")
    tokenizer = thinking_tokenizer()
    begin, one, two, think, thought, *call, end = (
        tokenizer.encode(text)[0] for text in ("\n", "1", "2", "<think>", "</think>", *CALL, "<|im_end|>")
    )
    chains = (
        {begin: think, think: one, one: thought, thought: two, two: end},
        {begin: one, one: one, two: one, think: one, thought: one},
        {begin: two, one: two, two: two, think: two, thought: two},
        {begin: think, think: one, one: thought, **dict(pairwise((thought, *call, end)))},
    )
    return [
        published(chain_model(folder / f"m{number}", tokenizer, chain), folder / f"v{number}", number)
        for number, chain in enumerate(chains)
    ]


@pytest.fixture(scope="module")
def live(versions: list[WeightRef]) -> Iterator[Recorded]:
    """A server whose requests in flight go on with new weights."""
    pytest.importorskip("vllm")
    model = Path(versions[0].path).parent / "m0"
    loop, stack = Loop(), AsyncExitStack()
    engine = VllmEngine(
        model, seed=0, max_model_len=ROOM, options={}, swap="recompute", texts=True, own_thread=True
    )
    engine.load_weights(versions[0])
    template = ChatTemplate(AutoTokenizer.from_pretrained(model))
    capture = Capture(template, Sampling(TOKENS), policy=TemplatePolicy.KEEP_THINKING)

    async def started() -> str:
        app = await capturing(capture, engine, "tiny", reasoning_parser="deepseek_r1", tool_parser="hermes")
        return await stack.enter_async_context(listening(app))

    yield Recorded(loop.run(started()), capture, loop, engine, model)
    loop.run(stack.aclose())
    engine.close()
    loop.close()


def test_thinking_is_parsed_for_the_client_and_whole_in_the_row(live: Recorded) -> None:
    trajectory, client = live.open()
    with client:
        said = client.chat.completions.create(model="tiny", messages=[ASK]).choices[0].message  # type: ignore[list-item]
        assert (said.content or "").strip() == "2"
        assert "1" in str(said.model_dump().get("reasoning"))
        history: Any = [ASK, {"role": "assistant", "content": said.content}, ASK]
        client.chat.completions.create(model="tiny", messages=history)
    (row,) = live.rows(trajectory)
    whole = AutoTokenizer.from_pretrained(live.model).decode(row.token_ids)
    assert whole.count("<think>1</think>2<|im_end|>") == 2, "the client sent its history without thinking"
    assert sum(row.action_mask or ()) == trajectory.sampled == 10


def test_streams_that_are_open_across_a_swap_go_on_and_say_which_version_said_what(
    live: Recorded, versions: list[WeightRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    halting, swapping = threading.Event(), live.engine.apply

    def apply(*of_weights: Any) -> None:
        halting.set()
        swapping(*of_weights)

    async def story() -> list[str]:
        await live.engine.swap_weights(versions[1])
        monkeypatch.setattr(live.engine, "apply", apply)
        async with openai.AsyncOpenAI(
            base_url=live.address + Capture.path(trajectory.id),
            api_key=live.capture.key(trajectory.id),
            max_retries=0,
        ) as client:
            asked = [
                client.chat.completions.create(model="tiny", messages=[ASK], stream=True)  # type: ignore[list-item]
                for _ in range(3)
            ]
            streams = await asyncio.gather(*asked)
            firsts = [await anext(stream) for stream in streams]
            assert all(first.choices for first in firsts)
            live.engine._calls.later(lambda: halting.wait(60))  # the swap comes before the streams' ends
            swap = asyncio.create_task(live.engine.swap_weights(versions[2]))
            texts = await asyncio.gather(*(_text(stream) for stream in streams))
            await swap
            return texts

    trajectory, _ = live.open()
    texts = live.loop.run(story())
    rows = live.rows(trajectory)
    assert len(rows) == len(texts) == 3
    for row in rows:
        (old, begin, swapped), (new, goes_on, end) = row.version_spans
        assert (old, new, goes_on, end - begin) == (1, 2, swapped, TOKENS)
        assert row.completion_text == "1" * (swapped - begin) + "2" * (end - swapped)
    assert sorted(texts) == sorted(row.completion_text for row in rows)


async def _text(stream: Any) -> str:
    pieces = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    return "".join(str(getattr(one, "reasoning", None) or "") + (one.content or "") for one in pieces)


def test_a_step_does_not_hold_the_event_loop_up(live: Recorded) -> None:
    """The engine's thread stands still, and the loop takes a request."""
    trajectory, client = live.open()
    halting, stood = threading.Event(), list[bool]()

    async def asked() -> Any:
        live.engine._calls.later(lambda: stood.append(halting.wait(60)))
        saying = asyncio.create_task(
            asyncio.to_thread(
                client.chat.completions.create,
                model="tiny",
                messages=[ASK],
                max_tokens=2,  # type: ignore[list-item]
            )
        )
        while not trajectory.turns._begun:
            await asyncio.sleep(0.001)
        assert not saying.done(), "the request waits for the engine, and the loop for nothing"
        halting.set()
        return await saying

    with client:
        assert live.loop.run(asked()).usage.completion_tokens == 2
    assert stood == [True]


def test_a_parser_that_vllm_does_not_have_is_refused(live: Recorded) -> None:
    for name in ("tool_parser", "reasoning_parser"):
        with pytest.raises(RecipeError, match="'nobodys'"):
            live.loop.run(openai_app(live.engine, "tiny", **{name: "nobodys"}))


ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


async def by_chat(url: str, key: str) -> None:
    """As a program of one's own does, with a stream in between."""
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        history: list[Any] = [ASK]
        for turn in range(CALLS):
            asked: Any = {"model": "tiny", "messages": history, "tools": [ADD]}
            if turn == 1:
                chunks = [one async for one in await client.chat.completions.create(**asked, stream=True)]
                parts = [one.choices[0].delta for one in chunks if one.choices]
                content = "".join(part.content or "" for part in parts)
                calls = [call for part in parts for call in part.tool_calls or ()]
                name = "".join(call.function.name or "" for call in calls)
                arguments = "".join(call.function.arguments or "" for call in calls)
                call = {"id": calls[0].id, "type": "function"}
                call |= {"function": {"name": name, "arguments": arguments}}
                said = {"role": "assistant", "content": content, "tool_calls": [call]}
            else:
                choice = (await client.chat.completions.create(**asked)).choices[0]
                assert choice.finish_reason == "tool_calls"
                said = choice.message.model_dump(exclude_none=True, exclude={"reasoning"})
            [call] = said["tool_calls"]
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
                "add",
                {"a": 2, "b": 3},
            )
            assert said["content"].strip() == "Let me add."
            history += [said, {"role": "tool", "tool_call_id": call["id"], "content": "5"}]


async def by_responses(url: str, key: str) -> None:
    """As OpenAI's newer clients do."""
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        history: list[Any] = [ASK]
        for _ in range(CALLS):
            said = await client.responses.create(model="tiny", input=history, tools=[tool])  # type: ignore[list-item]
            items = [one.model_dump(exclude_none=True) for one in said.output if one.type != "reasoning"]
            [call] = [one for one in items if one["type"] == "function_call"]
            assert json.loads(call["arguments"]) == {"a": 2, "b": 3}
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
            history += [*items, result]


async def by_messages(url: str, key: str) -> None:
    """As Anthropic's clients do."""
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
    headers = {"x-api-key": key}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        history: list[Any] = [ASK]
        for _ in range(CALLS):
            body = {"model": "tiny", "messages": history, "tools": [tool], "max_tokens": TOKENS}
            answer = await client.post("/messages", json=body)
            assert answer.status_code == 200, answer.text
            blocks = [one for one in answer.json()["content"] if one["type"] != "thinking"]
            [call] = [one for one in blocks if one["type"] == "tool_use"]
            assert call["input"] == {"a": 2, "b": 3}
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "5"}
            history += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]


@pytest.mark.parametrize(
    ("package", "agent"),
    [
        ("openai", by_chat),
        ("openai", by_responses),
        ("openai", by_messages),
        ("agents", openai_agents),
        ("agentscope", partial(agentscope, turns=TURNS[:1])),
    ],
)
def test_an_agent_that_thinks_and_calls_tools_is_one_row_of_what_was_sampled(
    live: Recorded, versions: list[WeightRef], package: str, agent: Agent
) -> None:
    """Its history has no thinking, and the calls as the client and the template write them."""
    pytest.importorskip(package)
    live.loop.run(live.engine.swap_weights(versions[3]))
    trajectory, client = live.open()
    asyncio.run(agent(live.address + Capture.path(trajectory.id), client.api_key))
    row, *others = live.rows(trajectory)
    offered = [turn for turn in trajectory.turns if turn.offered != "null"]
    turns = len(offered)
    assert turns >= CALLS
    assert trajectory.drift[Drift.EXACT] == turns
    assert len(others) == (package == "agentscope"), "at its last iteration it offers no tools any more"
    assert sum(row.action_mask or ()) == sum(len(turn.sampled) for turn in offered)
    whole = AutoTokenizer.from_pretrained(live.model).decode(row.token_ids)
    assert whole.count("<think>1</think>" + "".join(CALL) + "<|im_end|>") == turns
    calls = [message["tool_calls"][0]["function"] for message in row.messages if "tool_calls" in message]
    assert calls == [{"name": "add", "arguments": {"a": 2, "b": 3}}] * turns
    assert sum(message["role"] == "tool" for message in row.messages) == turns - 1
