"""Chat messages as they come from outside: checked, and brought to one form.

One form: `role` and `content` always present (`content` "" beside tool calls), no key that is null, tool-call
arguments as an object when they are the JSON text of one. What a message means is not this module's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.errors import RowError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_CALLS = ("tool_calls", "function_call")


def chat(value: Any, where: str) -> list[dict[str, Any]]:
    """A list of messages in the one form.

    Raises: RowError naming `where`, the message and what is wrong.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RowError(f"{where} holds {type(value).__name__}; a list of messages is needed")
    if not value:
        raise RowError(f"{where} has no messages")
    return [message(item, f"{where}[{place}]") for place, item in enumerate(value)]


def message(value: Any, where: str) -> dict[str, Any]:
    """One message in the one form.

    Raises: RowError naming `where` and what is wrong.
    """
    if not isinstance(value, Mapping):
        raise RowError(f"{where} is {type(value).__name__}; a message with role and content is needed")
    said = {key: item for key, item in value.items() if item is not None}
    role = said.get("role")
    if role not in ROLES:
        raise RowError(f"{where} has role {role!r}; one of {', '.join(ROLES)} is needed")
    content = said.get("content")
    if isinstance(content, list):
        content = [_part(part, f"{where}.content[{place}]") for place, part in enumerate(content)]
    elif content is None and any(name in said for name in (*_CALLS, "refusal", "reasoning_content")):
        content = ""
    elif not isinstance(content, str):
        raise RowError(f"{where} has content of {type(content).__name__}; text or a list of parts is needed")
    made = {
        "role": role,
        "content": content,
        **{k: v for k, v in said.items() if k not in ("role", "content")},
    }
    if "tool_calls" in made:
        made["tool_calls"] = _tool_calls(made["tool_calls"], where)
        if not made["tool_calls"]:
            del made["tool_calls"]
    return made


def _part(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise RowError(f"{where} has no 'type'; a part like {{'type': 'text', 'text': ...}} is needed")
    return {key: item for key, item in part.items() if item is not None}


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise RowError(f"{where} has tool_calls that are not a list of calls")
    made = []
    for call in calls:
        call = {key: item for key, item in call.items() if item is not None}
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError(f"{where} has a tool call without a function name")
        named = {**function, "arguments": _arguments(function.get("arguments"))}
        made.append({**call, "function": named} if "function" in call else {**call, **named})
    return made


def _arguments(value: Any) -> Any:
    """An object when it is one or the JSON text of one; text that is not stays as it is."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            parsed = json.loads(value, parse_constant=_not_json)
        except ValueError:
            return value
        return parsed if isinstance(parsed, dict) else value
    return value


def _not_json(name: str) -> None:
    raise ValueError(name)


def tools(value: Any) -> list[dict[str, Any]] | None:
    """Tool definitions, from a list or the JSON text of one; None for nothing.

    Raises: RowError if it is something else.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_not_json) if value.strip() else None
        except ValueError as err:
            raise RowError(f"column 'tools' is text that is not JSON: {err}") from err
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise RowError("column 'tools' is not a list of tool definitions")
    return [dict(tool) for tool in value]


def written(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a file: role first, then content, as everybody writes them (the buffer sorts keys)."""
    return [{"role": item["role"], "content": item["content"], **item} for item in messages]


def first_answer(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many messages come before the first answer of the assistant: the prompt of a conversation.

    Raises: RowError if there is none.
    """
    for place, item in enumerate(messages):
        if item["role"] == "assistant":
            return place
    raise RowError("no message of the assistant; there is nothing to learn from it")


def completion_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The texts of the assistant's messages, one under the other."""
    return "\n".join(message_text(item) for item in messages if item["role"] == "assistant")


def message_text(item: Mapping[str, Any]) -> str:
    """The text of one message; that of its text parts when it has several."""
    content = item["content"]
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


def one_text(messages: Sequence[Mapping[str, Any]], role: str, what: str) -> str:
    """The text of what must be a single plain message of `role`.

    Raises: RowError if it is anything more.
    """
    if len(messages) != 1:
        raise RowError(f"{what} has {len(messages)} messages; this format holds one")
    item = messages[0]
    if item["role"] != role:
        raise RowError(f"{what} is a message of the {item['role']}; this format holds one of the {role}")
    if not isinstance(item["content"], str) or set(item) - {"role", "content"}:
        raise RowError(f"{what} holds more than text (tool calls, images or a name)")
    return item["content"]
