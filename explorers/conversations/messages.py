"""Chat messages as they are compared: two histories are the same when their keys are equal."""

from __future__ import annotations

from collections.abc import Sequence

from explorers.conversations.template import THINK_CLOSE, THINK_OPEN
from rft_data.core.canonical import canonical_json
from rft_data.core.chat import chat
from rft_data.core.rows import Message


def one_form(messages: Sequence[Message]) -> list[Message]:
    """The messages as rows store them: arguments of calls are objects, no value is null.

    Raises: RowError for what is no message.
    """
    return [dict(message) for message in chat([dict(message) for message in messages], "messages")]


def key(message: Message) -> str:
    """Identity of a message, as canonical JSON: equal for messages that count as the same.

    Thinking, the ids of calls and an assistant's name do not count: many agent programs drop, renumber or add
    them. A list of text parts equals its text.
    """
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    text, name = _text(message["content"]), message.get("name")
    if message["role"] == "assistant":
        text, name = unthought(text) if isinstance(text, str) else text, None
    return canonical_json([message["role"], text, calls, name])


def unthought(text: str) -> str:
    """A turn's text without a block of thinking at its beginning."""
    if not text.lstrip().startswith(THINK_OPEN) or THINK_CLOSE not in text:
        return text
    return text.partition(THINK_CLOSE)[2].lstrip("\n")


def _call(call: Message) -> list[object]:
    function = call.get("function", call)
    return [function.get("name"), function.get("arguments")]


def _text(content: object) -> object:
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part.get("text", "") for part in content)
    return content
