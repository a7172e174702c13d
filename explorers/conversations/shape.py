"""Whether a chat template renders history as it rendered it when it was new.

What a template does to earlier turns depends on roles, thinking and calls, not on the words. So this is tried
with a synthetic conversation of the same shape (marks in place of texts), once for each shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

from explorers.conversations.template import THINK_CLOSE, THINK_OPEN, ChatTemplate
from rft_data.core.rows import Message


class Parameters(TypedDict, total=False):
    """The schema of a function's arguments."""

    type: str
    properties: Mapping[str, Mapping[str, object]]
    required: Sequence[str]


class Function(TypedDict):
    """The function in a tool definition."""

    name: str
    description: str
    parameters: Parameters


class ToolDefinition(TypedDict):
    """A tool in OpenAI's form."""

    type: str
    function: Function


@dataclass(frozen=True, slots=True)
class Form:
    """One message without its text."""

    role: str
    says: bool = True
    """Whether it has content."""
    thinks: bool = False
    calls: int = 0
    """Number of tool calls."""


def form(message: Message) -> Form:
    """The form of a message."""
    content = message.get("content")
    block = isinstance(content, str) and message["role"] == "assistant" and THINK_CLOSE in content
    said = content.partition(THINK_CLOSE)[2].strip() if isinstance(content, str) and block else content
    thinks = block or bool(message.get("reasoning_content"))
    return Form(message["role"], bool(said), thinks, len(message.get("tool_calls") or ()))


@dataclass(frozen=True, slots=True)
class _Marks:
    """Placeholders for the texts of a sampled turn."""

    think: str
    say: str
    call: str


@lru_cache(maxsize=4096)
def broken(template: ChatTemplate, forms: tuple[Form, ...], last: int, offered: bool) -> str:
    """Reason why a template renders a turn in another way after what was appended to it; empty: it does not.

    Args:
        template: each shape is rendered once for it.
        forms: the conversation, with the messages after the turn.
        last: index of the turn; those before it were checked when they were the last.
        offered: whether tools are offered.

    Raises: RowError when the template cannot render it.
    """
    said = synthetic(forms, template)
    tools = tool_definitions(said) if offered else None
    before = template.text(said[:last], tools, opened=True)
    own = template.text(said[: last + 1], tools, opened=False)
    whole = template.text(said, tools, opened=True)
    if not whole.startswith(before):
        return "what came before the turn is rendered in another way"
    if not own.startswith(before):
        return "the turn is rendered in another way than it is opened"
    marks = _marks(last)
    rest = whole[len(before) :]
    if why := _opening(forms[last], marks, rest, own[len(before) :]):
        return why
    tail = template.tail(said[last], said[last + 1 :], tools)
    if not rest.endswith(tail):
        return "the appended messages are rendered in another way after this conversation"
    if not forms[last].calls and forms[last].says and rest.partition(marks.say)[2] != tail:
        return "something is put after the turn"
    return ""


def synthetic(forms: Sequence[Form], template: ChatTemplate) -> list[Message]:
    """A conversation of this shape, in which each text is another."""
    said: list[Message] = []
    waiting: list[Message] = []
    for place, one in enumerate(forms):
        message: Message = {"role": one.role, "content": f"text {place}" if one.says else ""}
        if one.role == "assistant":
            message, waiting = _turn(one, place, template), []
            waiting += message.get("tool_calls", [])
        elif one.role == "tool" and waiting:
            call = waiting.pop(0)
            message = {**message, "tool_call_id": call["id"], "name": call["function"]["name"]}
        said.append(message)
    return said


def _turn(one: Form, place: int, template: ChatTemplate) -> Message:
    marks = _marks(place)
    message: dict[str, object] = {"role": "assistant", "content": marks.say if one.says else ""}
    if one.thinks and template.renders_thinking:
        message["reasoning_content"] = marks.think
    elif one.thinks:
        message["content"] = f"{THINK_OPEN}\n{marks.think}\n{THINK_CLOSE}\n\n{message['content']}"
    if one.calls:
        names = [f"{marks.call}{n}" for n in range(one.calls)]
        message["tool_calls"] = [
            {
                "id": f"c{place:04d}{n:04d}",
                "type": "function",
                "function": {"name": name, "arguments": {"x": n}},
            }
            for n, name in enumerate(names)
        ]
    return message


def _marks(place: int) -> _Marks:
    return _Marks(f"rft7think{place}mark", f"rft7say{place}mark", f"rft7call{place}mark")


def _opening(one: Form, marks: _Marks, rest: str, first: str) -> str:
    """Whether a turn begins in history (`rest`) as it did when it was the newest (`first`)."""
    if one.thinks:
        lead, found, _ = rest.partition(marks.think)
        if not found:
            return "the thinking of the turn is dropped"
        return "" if lead == first.partition(marks.think)[0] else "the thinking is opened in another way"
    mark = marks.say if one.says else marks.call
    if not one.says and not one.calls:
        return ""
    lead, found, _ = rest.partition(mark)
    if not found:
        return "the content of the turn is dropped" if one.says else "the calls of the turn are dropped"
    if THINK_CLOSE in lead:
        return "a block of thinking is put before a turn that did not think"
    if (one.says and lead) or not first.partition(mark)[0].endswith(lead):
        return "something is put before the turn"
    return ""


def tool_definitions(messages: Sequence[Message]) -> list[ToolDefinition]:
    """Definitions of the tools that a synthetic conversation calls, at least one."""
    names = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
    parameters: Parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    return [
        {"type": "function", "function": {"name": name, "description": "rft7tool", "parameters": parameters}}
        for name in (*names[:2], "tool")
    ]
