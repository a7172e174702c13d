"""Sampled text to a reply: thinking and tool calls in the forms of the model families.

Hermes and Qwen: `<tool_call>{"name", "arguments"}</tool_call>`. Llama 3: the whole answer is `{"name",
"parameters"}`. Gemma and Llama's pythonic form: `[f(x=1), g(y="a")]`, bare or in a block of ```tool_code.
What looks like a call and is none is reported with `arguments` None, never raised.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from explorers.conversations.replies import Reply, ToolCall
from explorers.conversations.template import THINK_CLOSE, THINK_OPEN

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_CODE = re.compile(r"\A\s*```tool_code\s*\n(.*?)(?:```\s*)?\Z", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: dict[str, object] | None
    text: str


def parse(
    text: str,
    finish_reason: str,
    *,
    tools: Collection[str] = (),
    thinking_open: bool = False,
    keep_thinking: bool = False,
    first_call: int = 0,
    special: Sequence[str] = (),
) -> Reply:
    """A reply from sampled text without its end token.

    Args:
        tools: names of the tools that were offered; without any no call is looked for.
        thinking_open: the prompt has opened the block of thinking already.
        keep_thinking: the message's content keeps the block, for templates without `reasoning_content`.
        first_call: number of the first call, from which its id is made.
        special: texts of special tokens, which are left out of the content and the thinking.
    """
    reasoning, answer = _thinking(text, thinking_open)
    content, found = _calls(answer, tools) if tools else (answer, [])
    content = _without(content, special)
    reasoning = None if reasoning is None else _without(reasoning, special)
    calls = tuple(
        ToolCall(f"call{first_call + n:05d}", call.name, call.arguments, call.text)
        for n, call in enumerate(found)
    )
    block = text[: len(text) - len(answer)] if keep_thinking else ""
    if block and thinking_open:
        block = f"{THINK_OPEN}\n{block}"
    message: dict[str, object] = {"role": "assistant", "content": block + content}
    if reasoning is not None and not keep_thinking:
        message["reasoning_content"] = reasoning
    if sent := [_sent(call) for call in calls if call.arguments is not None]:
        message["tool_calls"] = sent
    return Reply(content, reasoning, calls, finish_reason, message)


def tool_names(tools: Sequence[Mapping[str, object]] | None) -> list[str]:
    """The names of tool definitions, in OpenAI's form or bare."""
    return [_tool_name(tool) for tool in tools or ()]


def _tool_name(tool: Mapping[str, object]) -> str:
    function = tool.get("function")
    named = function if isinstance(function, Mapping) else tool
    return str(named.get("name", ""))


def _without(text: str, special: Sequence[str]) -> str:
    for token in special:
        text = text.replace(token, "")
    return text


def _thinking(text: str, opened: bool) -> tuple[str | None, str]:
    """The thinking, None without, and the text after it; a block that is not closed is all thinking."""
    start = text.lstrip()
    if not opened and not start.startswith(THINK_OPEN):
        return None, text
    inner = start.removeprefix(THINK_OPEN)
    thought, closed, answer = inner.partition(THINK_CLOSE)
    return thought.strip("\n"), answer.lstrip("\n") if closed else ""


def _calls(text: str, tools: Collection[str]) -> tuple[str, list[_Call]]:
    """The visible content and the calls; the text of malformed calls stays in the content."""
    if "<tool_call>" in text:
        return _hermes(text)
    body = text.strip().removeprefix(_PYTHON_TAG).strip()
    if code := _CODE.match(text):
        return _python(text, code[1].strip(), tools, block=True)
    if body.startswith("{"):
        return _json(text, body, tools)
    if body.startswith("["):
        return _python(text, body, tools, block=False)
    return text, []


def _hermes(text: str) -> tuple[str, list[_Call]]:
    calls = [_json_call(match[1].strip(), match[0]) for match in _HERMES.finditer(text)]
    good = {call.text for call in calls if call.arguments is not None}
    kept = _HERMES.sub(lambda match: "" if match[0] in good else match[0], text)
    return kept.strip("\n") if good else kept, calls


def _json(text: str, body: str, tools: Collection[str]) -> tuple[str, list[_Call]]:
    """Llama 3's form; JSON that names none of the tools is an answer."""
    call = _json_call(body, body)
    if call.arguments is not None and call.name in tools:
        return "", [call]
    if call.arguments is None and any(f'"{name}"' in body for name in tools) and '"name"' in body:
        return text, [call]
    return text, []


def _json_call(body: str, text: str) -> _Call:
    try:
        value = _storable(json.loads(body))
    except (ValueError, RecursionError):
        return _Call("", None, text)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _Call("", None, text)
    arguments = value.get("arguments", value.get("parameters", {}))
    return _Call(value["name"], arguments if isinstance(arguments, dict) else None, text)


def _python(text: str, body: str, tools: Collection[str], *, block: bool) -> tuple[str, list[_Call]]:
    """Calls in Python's syntax with literal keyword arguments."""
    try:
        tree = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return (text, [_Call("", None, body)]) if block else (text, [])
    if (
        isinstance(tree, ast.Call)
        and _called(tree) == "print"
        and "print" not in tools
        and len(tree.args) == 1
    ):
        tree = tree.args[0]
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    if not nodes or not all(isinstance(node, ast.Call) for node in nodes):
        return (text, [_Call("", None, body)]) if block else (text, [])
    calls = [_python_call(node, body) for node in nodes if isinstance(node, ast.Call)]
    if not block and not any(call.name in tools for call in calls):
        return text, []
    return ("" if all(call.arguments is not None for call in calls) else text), calls


def _python_call(node: ast.Call, body: str) -> _Call:
    text = ast.get_source_segment(body, node) or body
    name = _called(node)
    if not name or node.args or any(keyword.arg is None for keyword in node.keywords):
        return _Call(name, None, text)
    try:
        given = _storable({str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords})
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _Call(name, None, text)
    return _Call(name, given, text)


def _storable(value: object) -> Any:
    """The value as JSON in UTF-8 gives it back. Raises: ValueError, TypeError when a row cannot hold it."""
    return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""


def _sent(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": copy.deepcopy(call.arguments or {})}
    return {"id": call.id, "type": "function", "function": function}
