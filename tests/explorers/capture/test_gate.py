"""The gate before vLLM's server; no engine is needed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any, cast

import pytest

from explorers.capture import gate
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
    monkeypatch.setattr(gate, "_BODY_S", 0.01)
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
