"""Bodies of thousands of values: the first wrong one is named, at its cost alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import ValidationError

from explorers.capture.elements import MOST_IDS, MOST_ITEMS, MOST_VALUES, check_elements
from explorers.capture.fields import ROUTES
from explorers.capture.refused import Refused

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
MANY = 1000
USER: dict[str, Any] = {"role": "user", "content": "2 + 2 ="}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]}, COMPLETIONS: {"prompt": "2 + 2 ="}, RESPONSES: {"input": [USER]},
    MESSAGES: {"messages": [USER], "max_tokens": 1},
}  # fmt: skip
OUTPUT = {"type": "message", "role": "assistant", "id": "a", "status": "completed"}
TEXT = {"type": "text", "text": 4, "content": [4] * MANY}
SAID: dict[str, Any] = {"type": "output_text", "text": "4", "annotations": []}
ADD: dict[str, Any] = {"name": "a", "input_schema": {}}
SOME_ERRORS = 300
"""More than one wrong item has: `input` takes about 30 forms of items."""


@pytest.fixture(scope="module")
def forms() -> Any:
    pytest.importorskip("vllm")
    from explorers.capture.forms import Forms

    return Forms()


def check(forms: Any, route: str, changes: dict[str, Any]) -> None:
    body = {"model": "tiny", **ASKED[route], **changes}
    check_elements(body)
    forms.check(route, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("route", "changes", "field"),
    [
        (CHAT, {"messages": [USER, *[{}] * MANY]}, "messages[1]"),
        (CHAT, {"messages": [USER, *[5] * MANY]}, "messages[1]"),
        (CHAT, {"messages": [{**USER, "content": [{}] * MANY}]}, "messages[0].content[0]"),
        (CHAT, {"messages": [USER, *[{"role": "user", "content": 5}] * MANY]}, "messages[1]"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * 9}] * MANY}, "body"),
        (CHAT, {"tools": [5] * MANY}, "tools[0]"),
        (CHAT, {"tools": [{"type": "function"}] * MANY}, "tools[0]"),
        (CHAT, {"stop": [1] * MANY}, "stop[0]"),
        (CHAT, {"stop_token_ids": ["a"] * MANY}, "stop_token_ids[0]"),
        (COMPLETIONS, {"prompt": [-1] * MANY}, "prompt[0]"),
        (COMPLETIONS, {"prompt": [[1, "a"]] * MANY}, "prompt[0]"),
        (RESPONSES, {"input": [{}] * MANY}, "input[0]"),
        (RESPONSES, {"input": [{"role": "user"}] * MANY}, "input[0]"),
        (RESPONSES, {"input": [{"role": "user", "content": [{}] * MANY}]}, "input[0].content[0]"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}] * MANY}]}, "input[0]"),
        (RESPONSES, {"input": [{**OUTPUT, "content": [5] * MANY}]}, "input[0].content[0]"),
        (RESPONSES, {"input": [{"type": "function_call", "arguments": [5]}] * MANY}, "input[0]"),
        (RESPONSES, {"tools": [{}] * MANY}, "tools[0]"),
        (MESSAGES, {"messages": [USER, *[{}] * MANY]}, "messages[1]"),
        (MESSAGES, {"messages": [USER, {**USER, "content": [TEXT] * 9}]}, "messages[1]"),
        (MESSAGES, {"messages": [{**USER, "content": [{"type": "text", "text": 4}] * MANY}]}, "messages[0]"),
        (MESSAGES, {"tools": [{}] * MANY}, "tools[0]"),
        (MESSAGES, {"system": [{}] * MANY}, "system[0]"),
        (MESSAGES, {"stop_sequences": [1] * MANY}, "stop_sequences[0]"),
    ],
)
def test_of_a_thousand_wrong_items_the_first_is_named(
    forms: Any, route: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as caught:
        check(forms, route, changes)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300
    if isinstance(wrong := caught.value.__cause__, ValidationError):
        assert wrong.error_count() < SOME_ERRORS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "changes"),
    [
        (CHAT, {"messages": [USER] * MOST_ITEMS}),
        (CHAT, {"messages": [{"role": "critic", "content": ["one", {"type": "text", "text": "two"}]}]}),
        (CHAT, {"messages": [{"role": "assistant", "content": None}], "stop": "x", "tools": None}),
        (COMPLETIONS, {"prompt": [[5] * (MOST_IDS // 2 - 1)] * 2}),
        (RESPONSES, {"input": "2 + 2 ="}),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "a", "output": "4"}]}),
        (RESPONSES, {"input": [{**OUTPUT, "content": [SAID]}]}),
        (MESSAGES, {"system": [{"type": "text", "text": "Add."}]}),
        (MESSAGES, {"tools": [{"name": "a", "input_schema": {"x": [{"y": 1}] * 9000}}]}),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "a"}, "tools": [ADD]}),
    ],
)
def test_what_agents_send_is_taken(forms: Any, route: str, changes: dict[str, Any]) -> None:
    check(forms, route, changes)


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_what_is_nested_too_deep_is_refused(forms: Any, route: str) -> None:
    deep = b'{"metadata": ' + b'{"a":' * 300 + b"1" + b"}" * 301
    with pytest.raises(Refused, match="recursion limit exceeded") as caught:
        forms.check(route, deep)
    assert caught.value.field == "body"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [USER] * (MOST_ITEMS + 1)}, "messages"),
        ({"input": [{"type": "reasoning"}] * (MOST_ITEMS + 1)}, "input"),
        ({"messages": [{**USER, "content": [5] * MOST_VALUES}]}, "messages"),
        ({"messages": [USER], "tools": [{"parameters": {str(n): {} for n in range(MOST_VALUES)}}]}, "tools"),
        ({"messages": [{**USER, "name": "a"}] * 4000, "x": {"y": [1] * MOST_VALUES}}, "x"),
        ({"stop_token_ids": [1] * (MOST_ITEMS + 1)}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(map(str, range(MOST_VALUES + 1)), 0)}, "logit_bias"),
        ({"prompt": [[1]] * MOST_IDS}, "prompt"),
    ],
)
def test_a_request_has_no_more_values_than_all_clients_can_wait_for(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as caught:
        check_elements(body)
    assert caught.value.field == field


def test_the_error_is_of_the_form_that_comes_nearest(forms: Any) -> None:
    with pytest.raises(Refused, match=r"'input\[0\]' has not the form .*\(call_id: Field required\)"):
        check(forms, RESPONSES, {"input": [{"type": "function_call", "name": "add", "arguments": "{}"}]})
    with pytest.raises(Refused, match=r"\(content.*: Input should be a valid string\)"):
        check(forms, CHAT, {"messages": [{"role": "user", "content": 5}]})
