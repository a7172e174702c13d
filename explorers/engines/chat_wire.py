"""Messages as rows store them, to and from the JSON of OpenAI-compatible endpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.engine import ChatCompletion
from rft_data.core.rows import Message
from rft_data.core.words import NOT_SAMPLED, FinishReason

_ENDS = {"tool_calls": FinishReason.STOP, "function_call": FinishReason.STOP, None: NOT_SAMPLED}
"""Finish reasons of endpoints in our words; others are kept as they came."""
WITHHELD = "content_filter"
"""Finish reason of an answer that the endpoint, not the model, cut off."""


def sent_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages for a request. Thinking is left out: some endpoints refuse it, the others ignore it."""
    return [_sent(message) for message in messages]


def sent_tools(tools: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Tool definitions for a request, each in its envelope."""
    return [
        dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools
    ]


def read_answer(data: Mapping[str, Any]) -> ChatCompletion:
    """The content of a chat completion.

    Raises: ValueError for one that says nothing, or whose parts are of other types.
    """
    choice = data["choices"][0]
    given, finish = choice["message"], choice.get("finish_reason")
    content, calls = _content(given.get("content")), _calls(given.get("tool_calls"))
    thought = given.get("reasoning_content") or given.get("reasoning")
    refusal = given.get("refusal")
    if content is None and not (calls or thought or refusal) and finish != FinishReason.LENGTH:
        raise ValueError(f"the answer has neither content nor tool calls (finish_reason {finish!r})")
    message: dict[str, object] = {"role": "assistant", "content": content or ""}
    if thought:
        message["reasoning_content"] = _unicode(str(thought))
    if refusal:
        message["refusal"] = _unicode(str(refusal))
    if calls:
        message["tool_calls"] = calls
    prompt, completion = counted(data)
    return ChatCompletion(
        message=message,
        finish_reason=_ENDS.get(finish, str(finish)),
        prompt_tokens=prompt,
        completion_tokens=completion,
        served_by=str(data.get("model") or ""),
    )


def counted(data: Mapping[str, object]) -> tuple[int, int]:
    """Tokens of prompt and reply, as the endpoint counted them; 0 where it says nothing."""
    usage = data.get("usage")
    given = (
        [usage.get(f"{part}_tokens") for part in ("prompt", "completion")]
        if isinstance(usage, Mapping)
        else []
    )
    prompt, completion = (one if isinstance(one, int) and one > 0 else 0 for one in given or (0, 0))
    return prompt, completion


def _sent(message: Message) -> dict[str, object]:
    sent = {name: value for name, value in message.items() if name not in ("reasoning_content", "tool_calls")}
    calls = message.get("tool_calls")
    if calls:
        sent["tool_calls"] = [_sent_call(call) for call in calls]
        sent["content"] = sent["content"] or None
    return sent


def _sent_call(call: Mapping[str, Any]) -> dict[str, object]:
    function = call.get("function", call)
    given = function.get("arguments")
    text = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    return {
        "id": call.get("id", ""),
        "type": "function",
        "function": {"name": function.get("name", ""), "arguments": text},
    }


def _content(given: object) -> str | None:
    """The text of a message; None where there is none. Raises: ValueError."""
    if isinstance(given, list):
        given = "".join(str(part.get("text") or "") for part in given if isinstance(part, Mapping))
    if given is None or isinstance(given, str):
        return None if given is None else _unicode(given)
    raise ValueError(f"the answer's content is {type(given).__name__}")


def _calls(given: object) -> list[dict[str, object]]:
    """The tool calls of a message. Raises: ValueError."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise ValueError(f"the answer's tool_calls are {type(given).__name__}")
    return [_call(call, place) for place, call in enumerate(given)]


def _call(given: object, place: int) -> dict[str, object]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(function, Mapping):
        raise ValueError("the answer has a tool call without a function")
    if not isinstance(name := function.get("name"), str):
        raise ValueError("the answer has a tool call without a name")
    return {
        "id": _unicode(str(given.get("id") or f"call{place:05d}")),
        "type": "function",
        "function": {"name": _unicode(name), "arguments": _arguments(function.get("arguments"))},
    }


def _arguments(given: object) -> dict[str, object] | str:
    """An object, or the text of what is none: a malformed call, which is the model's own fault."""
    if isinstance(given, dict):
        return given
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return json.dumps(given)
    given = _unicode(given)
    try:
        read = json.loads(given, parse_constant=_not_json)
        json.dumps(read, ensure_ascii=False).encode()  # what escapes may hide is no JSON either
    except (ValueError, RecursionError):
        return given
    return read if isinstance(read, dict) else given


def _unicode(text: str) -> str:
    """The text with ? for lone surrogates, which JSON can write, and neither a request nor a row can hold."""
    return text.encode(errors="replace").decode()


def _not_json(name: str) -> None:
    raise ValueError(name)
