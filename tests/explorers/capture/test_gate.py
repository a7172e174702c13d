"""The gate before vLLM's server; no engine is needed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any, cast

import pytest

from explorers.capture import bodies, gate
from explorers.capture.bodies import Bodies, BodyRefused
from explorers.capture.capture import Capture
from explorers.capture.fields import asks_for_grammar
from explorers.conversations.template import ChatTemplate
from rft_data.core.protocols import Sampling
from tests.explorers.conversations.families import FAMILIES


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, False),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, True),
        ({"tool_choice": "required"}, True),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"text": {"format": {"type": "text"}}}, False),
        ({"text": {"format": {"type": "json_schema"}}}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
    ],
)
def test_only_what_constrains_an_answer_is_a_grammar(body: Mapping[str, Any], asks: bool) -> None:
    assert asks_for_grammar(body) is asks


def test_a_body_that_never_comes_does_not_keep_a_trajectory_open(
    spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_BODY_S", 0.01)
    tokenizer = copy.copy(spoken)
    tokenizer.chat_template = FAMILIES["qwen2.5"]
    capture = Capture(ChatTemplate(tokenizer), Sampling(64))
    sent: list[Any] = []

    async def nothing() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def story() -> None:
        name = capture.open().id
        key = b"Bearer " + capture.key(name).encode()
        path = capture.path(name) + "/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"authorization", key)]}
        await asyncio.wait_for(gate.Gate(capture, cast(Any, None))(scope, nothing, send), 30)
        opened = capture.find(name)
        assert opened is not None
        assert opened.requests == capture.requests == 0

    asyncio.run(story())
    assert sent[0]["status"] == 408


def test_the_bodies_of_all_requests_have_a_bound() -> None:
    """Which are read, and which are announced: none is read before there is room for it."""
    room = Bodies(100)

    async def given() -> Any:
        return {"type": "http.request", "body": b"x" * 40, "more_body": False}

    async def never() -> Any:
        raise AssertionError("it was read")

    def scope(length: bytes = b"") -> Any:
        return {"headers": [(b"Content-Length", length)] if length else []}

    async def story() -> None:
        async with room.read(scope(), given, 90) as first, room.read(scope(b"60"), given, 90) as second:
            assert first == second == b"x" * 40
            assert room.taken_bytes == 80, "what is there, and no longer what was announced"
            for length in (b"21", b"99999999999", b"-1", b"many", b""):
                with pytest.raises(BodyRefused, match="too many long requests") as refused:
                    async with room.read(scope(length), never, 90):
                        pass
                assert (refused.value.status, refused.value.wait_s) == (429, 1)
        with pytest.raises(BodyRefused, match="longer than 30 bytes") as refused:
            async with room.read(scope(), given, 30):
                pass
        assert refused.value.status == 413
        assert room.taken_bytes == 0

    asyncio.run(story())


@pytest.mark.parametrize(
    "path", ["/trajectories", "/trajectories/one/end", "/t/one/v1/completions", "/health"]
)
def test_nothing_is_read_of_who_has_no_key(spoken: Any, path: str) -> None:
    tokenizer = copy.copy(spoken)
    tokenizer.chat_template = FAMILIES["qwen2.5"]
    capture = Capture(ChatTemplate(tokenizer), Sampling(64))
    capture.open("one")
    key = capture.key("another")
    sent: list[Any] = []

    async def reads(*_: Any) -> Any:
        raise AssertionError("it was read")

    async def control(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b""
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    front = gate.Front(gate.Gate(capture, cast(Any, None)), control, 1000, "the token")
    headers = [(b"authorization", b"Bearer " + key.encode())]
    asyncio.run(front({"type": "http", "method": "POST", "path": path, "headers": headers}, reads, send))
    assert sent[0]["status"] == (200 if path == "/health" else 401)
