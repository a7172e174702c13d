"""Chat messages as they are compared: two histories are the same when their keys are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.rows import Message, canonical_json
from rft_data.exchange.formats.chat import chat


def one_form(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as rows store them: arguments of calls are objects, no value is null.

    Raises: RowError for what is no message.
    """
    return [dict(message) for message in chat([dict(message) for message in messages], "messages")]


def key(message: Mapping[str, Any]) -> str:
    """What decides whether two messages are the same, as canonical JSON.

    Thinking and the ids of calls do not count: many agent programs drop or renumber them. A list of text
    parts equals its text.
    """
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    parts = [message["role"], _text(message["content"]), calls, message.get("name")]
    return canonical_json(parts)


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function", call)
    return [function.get("name"), function.get("arguments")]


def _text(content: Any) -> Any:
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part.get("text", "") for part in content)
    return content
