"""ShareGPT and Vicuna: `conversations`, a list of turns `{from, value}`.

Roles: human, gpt, system, tool, and LLaMA-Factory's observation and function_call. A conversation with a turn
out of order is refused; the error names the turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rft_data.core.chat import first_answer, message, objects, tools
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Experience
from rft_data.exchange.formats.records import (
    Choices,
    Format,
    Origin,
    Record,
    Row,
    extra_columns,
    imported_experience,
    with_metadata,
)

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
_NAMES = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}
_BEFORE = {
    "system": (None,),
    "user": (None, "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
"""Roles that may come before each role; None: it may be first."""


def read_sharegpt(row: Row, origin: Origin) -> Sequence[Record]:
    """An experience; its completion begins with the first answer."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise RowError("column 'conversations' has no turns")
    messages = [_message(turn, place) for place, turn in enumerate(turns)]
    system = row.get("system")
    if isinstance(system, str) and system:
        messages.insert(0, {"role": "system", "content": system})
    _check_order(messages)
    metadata = extra_columns(row, ("conversations", "system", "tools"))
    return [
        imported_experience(
            origin, messages, first_answer(messages), tools=tools(row.get("tools")), metadata=metadata
        )
    ]


def _message(turn: Json, place: int) -> JsonObject:
    if not isinstance(turn, Mapping):
        raise RowError(f"turn {place} is {type(turn).__name__}; {{'from': ..., 'value': ...}} is needed")
    sender, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(sender, str) or sender not in _ROLES:
        raise RowError(f"turn {place} is from {sender!r}; one of {', '.join(_ROLES)} is needed")
    if not isinstance(value, str):
        raise RowError(f"turn {place} has a value of {type(value).__name__}; text is needed")
    rest = {k: v for k, v in turn.items() if k not in ("from", "value", "role", "content")}
    made: Row = {"role": _ROLES[sender], "content": value, **rest}
    if sender == "function_call":
        made = {**made, "content": "", "tool_calls": _calls(value, place)}
    return message(made, f"turn {place}")


def _calls(value: str, place: int) -> list[JsonObject]:
    try:
        calls = json.loads(value)
    except ValueError as err:
        raise RowError(f"turn {place} is a function_call that is not JSON: {err}") from err
    calls = calls if isinstance(calls, list) else [calls]
    return [{"type": "function", "function": call} for call in calls]


def _check_order(messages: Sequence[JsonObject]) -> None:
    before: str | None = None
    for place, item in enumerate(messages):
        role = str(item["role"])
        if before not in _BEFORE[role]:
            after = "at the beginning" if before is None else f"after '{_NAMES[before]}'"
            raise RowError(f"turn {place} is '{_NAMES[role]}' {after}; the order is odd")
        before = role
    if before != "assistant":
        raise RowError(f"the last turn is '{_NAMES[str(before)]}'; it must be 'gpt'")


def write_sharegpt(record: Experience, _: Choices) -> Row:
    """All messages, as turns."""
    row: Row = {"conversations": [_turn(item) for item in record.messages]}
    _check_order(record.messages)
    if record.tools:
        row["tools"] = json.dumps([dict(tool) for tool in record.tools], ensure_ascii=False)
    return with_metadata(row, record.metadata)


def _turn(item: JsonObject) -> JsonObject:
    role, content = item["role"], item["content"]
    if not isinstance(role, str) or role not in _NAMES:
        raise RowError(f"a message of the {role} has no name in this format")
    if not isinstance(content, str):
        raise RowError("a message holds more than text (images)")
    rest = {k: v for k, v in item.items() if k not in ("role", "content", "tool_calls")}
    if item.get("tool_calls") is None:
        return {"from": _NAMES[role], "value": content, **rest}
    calls = objects(item["tool_calls"])
    if calls is None or content or any(set(call) != {"type", "function"} for call in calls):
        raise RowError("a tool call with text or an id beside it has no form in this format")
    functions = [call["function"] for call in calls]
    return {"from": "function_call", "value": json.dumps(functions, ensure_ascii=False), **rest}


SHAREGPT = Format(
    "sharegpt",
    ("conversations: [{from: human|gpt|system|tool, value}] and optionally system, tools",),
    (frozenset({"conversations"}),),
    read_sharegpt,
    write_sharegpt,
    ("experiences",),
)
