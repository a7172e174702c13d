"""What a program may ask of a rollout's model, and that a long question holds nobody up."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import openai
import pytest

from explorers.capture.elements import MOST_ITEMS
from explorers.capture.refused import Refused
from explorers.conversations.asked import check_messages, check_prompt, checked_limits
from explorers.conversations.model_app import ModelApp
from explorers.conversations.openai_client import RolloutClient
from rft_data.core.engine import Sampling
from rft_data.core.errors import ContextOverflow
from tests.explorers.conversations.conftest import CONTEXT, TASK

SAMPLING = Sampling(64, temperature=0.7)
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hello"}


def tool(**more: Any) -> dict[str, Any]:
    return {**ADD, "function": {"name": "add", **more}}


@pytest.mark.parametrize(
    ("asked", "tools", "field"),
    [
        ({"temperature": 0.2}, None, "temperature"),
        ({"temperature": True}, None, "temperature"),
        ({"top_p": 0.5}, None, "top_p"),
        ({"seed": 0}, None, "seed"),
        ({"anything": []}, None, "anything"),
        ({"logprobs": 0}, None, "logprobs"),
        ({"service_tier": "flex"}, None, "service_tier"),
        ({"extra_body": {"seed": 1}}, None, "extra_body"),
        ({"max_tokens": 0}, None, "max_tokens"),
        ({"max_tokens": "3"}, None, "max_tokens"),
        ({"max_completion_tokens": 2.5}, None, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "max_tokens"),
        ({"stop": [[1]]}, None, "stop"),
        ({"stop": ["a", ""]}, None, "stop"),
        ({"stop": {"a": 1}}, None, "stop"),
        ({"stop": ["a"] * 65}, None, "stop"),
        ({"tools": [ADD]}, None, "tools"),  # of a completion
        ({}, "add", "tools"),
        ({}, [5], "tools[0]"),
        ({}, [ADD, {"type": "web_search"}], "tools[1]"),
        ({}, [tool(strict=True)], "tools[0].function.strict"),
        ({}, [tool(cached=1)], "tools[0].function.cached"),
        ({}, [{**ADD, "function": {"name": 5}}], "tools[0].function.name"),
        ({"tool_choice": "none"}, [ADD], "tool_choice"),
        ({"tool_choice": "required"}, None, "tool_choice"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(asked: Any, tools: Any, field: str) -> None:
    with pytest.raises(Refused) as caught:
        checked_limits(asked, SAMPLING, tools)
    assert caught.value.field == field
    assert f"'{field}'" in str(caught.value)


def test_what_changes_nothing_is_taken() -> None:
    asked = {
        "temperature": 0.7, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
        "response_format": {"type": "text"}, "tool_choice": "none", "n": 1, "user": "u", "seed": None,
        "timeout": 3, "extra_body": {}, "parallel_tool_calls": openai.NOT_GIVEN, "top_k": openai.omit,
        "max_tokens": 7, "max_completion_tokens": 7, "stop": "end",
    }  # fmt: skip
    assert checked_limits(asked, SAMPLING) == {"max_tokens": 7, "stop": ("end",)}
    assert checked_limits({"tool_choice": "auto", "stop": ["a", "b"]}, SAMPLING, [tool(strict=False)]) == {
        "max_tokens": None,
        "stop": ("a", "b"),
    }


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hello", "messages"),
        ([], "messages"),
        ([USER, 5], "messages[1]"),
        ([USER] * (MOST_ITEMS + 1), "messages"),
    ],
)
def test_messages_are_a_bounded_list_of_messages(messages: Any, field: str) -> None:
    check_messages([USER])
    with pytest.raises(Refused) as caught:
        check_messages(messages)
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", ["", [], ["a"], [-1], [1.5], [True], 5, None, {"a": 1}])
def test_a_prompt_is_a_text_or_ids(prompt: Any) -> None:
    check_prompt("a text")
    check_prompt([0, 5])
    with pytest.raises(Refused):
        check_prompt(prompt)


@pytest.mark.slow
def test_a_long_prompt_of_several_choices_is_made_ids_once_beside_the_loop(template_of, saying) -> None:
    template = template_of("qwen2.5")
    _, model = saying(template, *["four<|im_end|>"] * 8)
    made: list[threading.Thread] = []
    whole = template._ids

    def ids(text: str, special: bool) -> list[int]:
        made.append(threading.current_thread())
        return whole(text, special)

    template._ids = ids
    app = ModelApp(RolloutClient(model, Sampling(64)))
    body = {"messages": [{"role": "user", "content": "word " * 20_000}], "n": 8}

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://run") as http:
            return await http.post("/v1/chat/completions", content=json.dumps(body))

    answer = asyncio.run(ask())
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 8)
    assert len(made) == 1
    assert made[0] is not threading.main_thread()
    assert len(model.rows(TASK, CONTEXT)) == 8


@pytest.mark.slow
def test_a_prompt_that_no_tokens_of_the_context_hold_is_not_made_ids(template_of, saying) -> None:
    template = template_of("qwen2.5")
    engine, model = saying(template, "four<|im_end|>")
    engine.max_model_len = 5_000
    template._ids = None  # it would fail
    with pytest.raises(ContextOverflow, match="more tokens than max_model_len 5000 allows"):
        asyncio.run(model.chat([{"role": "user", "content": "x" * (5_000 * template.longest)}]))
    del template._ids
    with pytest.raises(ContextOverflow, match="a prompt of 60001 tokens cannot be completed"):
        asyncio.run(model.complete("ab" * 30_000 + "hello"))
    assert engine.seen == []
