"""Chat messages from files: checked, and brought to one form.

The one form: `role` and `content` are always there (`content` is "" beside tool calls), no value is null, and
tool-call arguments that are the JSON text of an object are that object. Meaning is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_CALLS = ("tool_calls", "function_call")


def chat(value: Json, where: str) -> list[JsonObject]:
    """A list of messages in the one form.

    Raises: RowError naming `where`, the message and what is wrong.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RowError(f"{where} holds {type(value).__name__}; a list of messages is needed")
    if not value:
        raise RowError(f"{where} has no messages")
    return [message(item, f"{where}[{place}]") for place, item in enumerate(value)]


def message(value: Json, where: str) -> JsonObject:
    """One message in the one form.

    Raises: RowError naming `where` and what is wrong.
    """
    if not isinstance(value, Mapping):
        raise RowError(f"{where} is {type(value).__name__}; a message with role and content is needed")
    given = {key: item for key, item in value.items() if item is not None}
    role = given.get("role")
    if role not in ROLES:
        raise RowError(f"{where} has role {role!r}; one of {', '.join(ROLES)} is needed")
    content = given.get("content")
    rest = {key: item for key, item in given.items() if key not in ("role", "content", "tool_calls")}
    if isinstance(content, list):
        content = [_part(part, f"{where}.content[{place}]") for place, part in enumerate(content)]
    elif content is None and any(name in given for name in (*_CALLS, "refusal", "reasoning_content")):
        content = ""
    elif not isinstance(content, str):
        raise RowError(f"{where} has content of {type(content).__name__}; text or a list of parts is needed")
    calls = _tool_calls(given["tool_calls"], where) if "tool_calls" in given else []
    return {"role": role, "content": content, **rest, **({"tool_calls": calls} if calls else {})}


def _part(part: Json, where: str) -> JsonObject:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise RowError(f"{where} has no 'type'; a part like {{'type': 'text', 'text': ...}} is needed")
    return {key: item for key, item in part.items() if item is not None}


def _tool_calls(calls: Json, where: str) -> list[JsonObject]:
    listed = objects(calls)
    if listed is None:
        raise RowError(f"{where} has tool_calls that are not a list of calls")
    made: list[JsonObject] = []
    for call in listed:
        call = {key: item for key, item in call.items() if item is not None}
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError(f"{where} has a tool call without a function name")
        named = {**function, "arguments": _arguments(function.get("arguments"))}
        made.append({**call, "function": named} if "function" in call else {**call, **named})
    return made


def _arguments(value: Json) -> Json:
    """An object for the JSON text of one, {} for null; any other value unchanged."""
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


def tools(value: Json) -> list[JsonObject] | None:
    """Tool definitions, from a list or the JSON text of one; None for null, "" and [].

    Raises: RowError for any other value.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_not_json) if value.strip() else None
        except ValueError as err:
            raise RowError(f"column 'tools' is text that is not JSON: {err}") from err
    if value is None or value == []:
        return None
    listed = objects(value)
    if listed is None:
        raise RowError("column 'tools' is not a list of tool definitions")
    for tool in listed:
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError("column 'tools' has a definition without a function's name")
    return [dict(tool) for tool in listed]


def objects(value: Json) -> list[JsonObject] | None:
    """The items of a list of objects; None for any other value."""
    if not isinstance(value, list):
        return None
    objects = [item for item in value if isinstance(item, Mapping)]
    return objects if len(objects) == len(value) else None


def written(messages: Sequence[JsonObject]) -> list[dict[str, Json]]:
    """Messages for a file, with keys in the usual order: role, content, the rest (a buffer sorts keys)."""
    return [{"role": item["role"], "content": item["content"], **item} for item in messages]


def first_answer(messages: Sequence[JsonObject]) -> int:
    """How many messages come before the assistant's first: the length of a conversation's prompt.

    Raises: RowError if there is none.
    """
    for place, item in enumerate(messages):
        if item["role"] == "assistant":
            return place
    raise RowError("no message of the assistant; there is nothing to learn from it")


def completion_text(messages: Sequence[JsonObject]) -> str:
    """The texts of the assistant's messages, joined by line ends."""
    return "\n".join(message_text(item) for item in messages if item["role"] == "assistant")


def message_text(item: JsonObject) -> str:
    """The text of one message; when its content is a list of parts, the texts of these joined."""
    content = item["content"]
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, Sequence) else []
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def one_text(messages: Sequence[JsonObject], role: str, what: str) -> str:
    """The text of `messages`, which must be one plain message of `role`; `what` names them in the error.

    Raises: RowError if it is anything more.
    """
    if len(messages) != 1:
        raise RowError(f"{what} has {len(messages)} messages; this format holds one")
    item = messages[0]
    if item["role"] != role:
        raise RowError(f"{what} is a message of the {item['role']}; this format holds one of the {role}")
    content = item["content"]
    if not isinstance(content, str) or set(item) - {"role", "content"}:
        raise RowError(f"{what} holds more than text (tool calls, images or a name)")
    return content
