"""Sampled text to a reply, in the forms of the model families; nothing that can be sampled is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorers.conversations.parsing import parse

ADD = {"a": 12, "b": 30}
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": 30}}\n</tool_call>'


def calls(text: str) -> list[tuple[str, Any]]:
    return [(one.name, one.arguments) for one in parse(text, "stop", tools=["add", "sub"]).tool_calls]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HERMES, [("add", ADD)]),
        (f"I add.\n{HERMES}\n{HERMES}", [("add", ADD), ("add", ADD)]),
        ('{"name": "add", "parameters": {"a": 12, "b": 30}}', [("add", ADD)]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 12, "b": 30}}', [("add", ADD)]),
        ("[add(a=12, b=30), sub(a=1)]", [("add", ADD), ("sub", {"a": 1})]),
        ("```tool_code\nadd(a=12, b=30)\n```", [("add", ADD)]),
        ("```tool_code\nprint(add(a=12, b=30))\n```", [("add", ADD)]),
        ("<tool_call>\n{broken\n</tool_call>", [("", None)]),
        ('<tool_call>\n{"name": "add"', [("", None)]),
        ('<tool_call>\n{"name": "add", "arguments": "a"}\n</tool_call>', [("add", None)]),
        ('<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>', [("", None)]),
        ('<tool_call>\n{"name": "add", "arguments": {"a": "\\ud800"}}\n</tool_call>', [("", None)]),
        ('{"name": "add", "parameters": {"a": 12', [("", None)]),
        ("```tool_code\nadd(12, 30)\n```", [("add", None)]),
        ("```tool_code\nadd(a=open('x'))\n```", [("add", None)]),
        ("```tool_code\nadd(\n```", [("", None)]),
        ('{"answer": 42}', []),
        ('{"name": "Ada", "age": 36}', []),
        ("[1, 2, 3]", []),
        ("[f(x=1)]", []),
        ("The call is add(a=12).", []),
    ],
)
def test_calls_in_the_forms_of_the_families(text: str, found: list[tuple[str, Any]]) -> None:
    assert calls(text) == found


def test_without_tools_no_call_is_looked_for() -> None:
    reply = parse(HERMES, "stop")
    assert (reply.tool_calls, reply.content) == ((), HERMES)


def test_text_beside_good_calls_is_the_content_and_malformed_calls_stay_in_it() -> None:
    reply = parse(f"I add.\n{HERMES}\n<tool_call>\n{{\n</tool_call>", "stop", tools=["add"], first_call=3)
    assert [one.id for one in reply.tool_calls] == ["call00003", "call00004"]
    assert reply.content == "I add.\n\n<tool_call>\n{\n</tool_call>"
    assert [one["id"] for one in reply.message["tool_calls"]] == ["call00003"]
    assert reply.tool_calls[1].text == "<tool_call>\n{\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nhow\n</think>\n\nfine.", False, "how", "fine."),
        ("how\n</think>\n\nfine.", True, "how", "fine."),
        ("<think>\n\n</think>\n\nfine.", False, "", "fine."),
        ("<think>\nhow", False, "how", ""),
        ("fine. <think> no", False, None, "fine. <think> no"),
        ("how </think> fine.", False, None, "how </think> fine."),
    ],
)
def test_thinking(text: str, opened: bool, reasoning: str | None, content: str) -> None:
    reply = parse(text, "stop", thinking_open=opened)
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert reply.message.get("reasoning_content") == reasoning


def test_thinking_stays_in_the_content_for_templates_that_know_no_other_place() -> None:
    reply = parse("how\n</think>\n\nfine.", "stop", thinking_open=True, keep_thinking=True)
    assert reply.message == {"role": "assistant", "content": "<think>\nhow\n</think>\n\nfine."}
    assert (reply.reasoning, reply.content) == ("how", "fine.")


def test_special_tokens_are_no_part_of_what_is_said() -> None:
    reply = parse("<think>a<|x|></think>fine.<|x|>", "stop", special=["<|x|>"])
    assert (reply.reasoning, reply.content) == ("a", "fine.")


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "```tool_code\n", "```", "[", "]", "{", "}",
    '"name"', ":",
    '"add"', "add(", ")", "a=", "1", ",", '"arguments"', "\\ud800", "\n", "<|python_tag|>", "lambda",
    "-", "9" * 5000,
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join), st.booleans())
def test_no_text_is_an_error_and_every_reply_can_be_stored(text: str, opened: bool) -> None:
    reply = parse(text, "stop", tools=["add"], thinking_open=opened, keep_thinking=opened)
    json.dumps(reply.message.get("tool_calls", []), allow_nan=False)
    for one in reply.tool_calls:
        json.dumps(one.arguments, ensure_ascii=False).encode()


def test_deep_nesting_is_a_malformed_call() -> None:
    assert calls("<tool_call>" + "[" * 100_000 + "</tool_call>") == [("", None)]
    assert calls("[" * 5_000 + "]" * 5_000) == []
