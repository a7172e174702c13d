"""The gate before vLLM's server; no engine is needed."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
from collections.abc import Mapping
from typing import Any, cast

import pytest

from explorers.capture import bodies, gate
from explorers.capture.bodies import Bodies, BodyRefused
from explorers.capture.capture import Capture, Open
from explorers.capture.fields import check_fields, grammar_field
from explorers.capture.limits import CaptureLimits
from explorers.capture.refused import Refused
from explorers.conversations.template import ChatTemplate
from rft_data.core.engine import Sampling
from rft_data.core.text import shown
from tests.explorers.conversations.families import FAMILIES


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, None),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]}, "tools.strict"),
        ({"tools": [{"name": "add", "strict": True}], "tool_choice": "none"}, None),
        ({"tools": [{"name": "add", "strict": False}]}, None),
    ],
)
def test_only_what_constrains_an_answer_is_a_grammar(body: Mapping[str, Any], field: str | None) -> None:
    assert grammar_field(body) == field


def test_a_grammar_that_cannot_be_had_is_refused_by_the_field_that_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="'structured_outputs' constrains the answer") as caught:
        gate._need_grammars("structured_outputs")
    assert caught.value.field == "structured_outputs"
    gate._need_grammars(None)


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FUNCTION = {"name": "add", "parameters": {"type": "object", "$defs": {"any": {"x": 1}}}, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
SCHEMA = {"name": "a", "schema": {"type": "object", "more": 1}, "strict": True}


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        (CHAT, {"stream_options": {"include_usage": True, "y": 1}}, "stream_options.y"),
        (CHAT, {"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        (CHAT, {"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {**SCHEMA, "x": 1}}},
            "response_format.json_schema.x",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_object", "json_schema": SCHEMA}},
            "response_format.json_schema",
        ),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"structured_outputs": {"regex": "a", "x": 1}}, "structured_outputs.x"),
        (
            CHAT,
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        (CHAT, {"tool_choice": {**TOOL, "x": 1}}, "tool_choice.x"),
        (
            CHAT,
            {"tool_choice": {"type": "function", "function": {"name": "add", "x": 1}}},
            "tool_choice.function.x",
        ),
        (CHAT, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        (CHAT, {"tools": [TOOL, {"type": "custom", "custom": {}}]}, "tools[1].type"),
        (CHAT, {"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]}, "tools[0].function.x"),
        ("/v1/completions", {"stream_options": {"y": 1}}, "stream_options.y"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (
            CHAT,
            {"chat_template_kwargs": {"enable_thinking": True, "add_generation_prompt": False}},
            "chat_template_kwargs.add_generation_prompt",
        ),
        (RESPONSES, {"top_logprobs": 3}, "top_logprobs"),
        (RESPONSES, {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", **SCHEMA, "x": 1}}}, "text.format.x"),
        (RESPONSES, {"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (RESPONSES, {"tool_choice": {"type": "mcp", "server_label": "a"}}, "tool_choice.type"),
        (MESSAGES, {"tool_choice": {"type": "any", "x": 1}}, "tool_choice.x"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        (MESSAGES, {"tools": [{"name": "a", "input_schema": {}, "x\x1b": 1}]}, "tools[0].x\x1b"),
    ],
)
def test_what_would_be_ignored_inside_an_object_is_named_by_its_place(
    route: str, body: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as caught:
        check_fields(route, body, Sampling(64))
    assert caught.value.field == field
    assert f"'{shown(field)}'" in str(caught.value)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"stream_options": {"include_usage": True, "include_obfuscation": False, "more": None}}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": SCHEMA}, "tools": [TOOL]}),
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": "of vLLM"}),
        (CHAT, {"chat_template_kwargs": {"mine": {"x": 1}}, "metadata": {"x": {"y": 1}}}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "medium"}}),
        (RESPONSES, {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto"}),
        (
            MESSAGES,
            {"tools": [{"name": "a", "input_schema": {"x": 1}, "cache_control": {"type": "ephemeral"}}]},
        ),
    ],
)
def test_objects_that_can_be_honoured_are_taken(route: str, body: Mapping[str, Any]) -> None:
    check_fields(route, body, Sampling(64))


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


def test_the_rows_of_a_trajectory_have_the_room_that_it_was_made_with(talk: Any) -> None:
    """A run's is of its own `budget`, or it has no bound; the server's limit is of those that it opens."""
    told = talk()
    told.say([{"role": "user", "content": "2 + 2?"}], "four")
    capture = Capture(told.template, Sampling(64), limits=CaptureLimits(key_tokens=1))
    asks = gate.Gate(capture, cast(Any, None))._asked
    assert asks(Open(told.trajectory), "/v1/completions", b'{"prompt": "more"}').limited is False
    told.trajectory.room = told.trajectory.held
    with pytest.raises(Refused, match=r"holds \d+ tokens, of at most \d+: end it"):
        asks(Open(told.trajectory), "/v1/completions", b'{"prompt": "more"}')


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
