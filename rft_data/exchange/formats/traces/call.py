"""Contents of a log's rows: calls of models, spans that are no such call, and scores about either."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rft_data.core.chat import chat, message
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.openai import SAMPLING

_NUMBERS = ("input_tokens", "output_tokens", "cost_usd")
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "chatbot": "assistant"}
_REDACTED = ("__REDACTED__", "redacted-by-litellm")


@dataclass(frozen=True, slots=True)
class Span:
    """The place of something in a log."""

    span_id: str
    trace: str
    parent: str = ""
    """Empty: it has none."""
    session: str = ""
    """An id that several traces share; empty: they share none."""
    started_s: float = 0.0
    """Seconds since 1970; 0 where the log has no time."""
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model that was answered."""

    span: Span
    messages: Sequence[JsonObject]
    """Messages that were sent, in the one form of `chat`."""
    answers: Sequence[JsonObject]
    """`{"message", "finish_reason"}` of each choice; at least one."""
    tools: Sequence[JsonObject] | None = None
    sampling: JsonObject = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    """`model`, `name`, `input_tokens`, `output_tokens`, `latency_s`, `cost_usd`; no key for the unknown."""


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a person or a program about a call, a trace or a session."""

    name: str
    value: float | None
    text: str | None
    author: str
    span_id: str = ""
    """Empty: it is about the trace."""
    trace: str = ""
    """Empty: that of the span."""
    created_at: str | None = None
    """ISO time; None where the log has none."""


Item = Span | Call | Score


def answered(
    span: Span,
    sent: Json,
    said: Sequence[tuple[Json, str]],
    *,
    tools: Sequence[JsonObject] | None,
    sampling: Json,
    facts: Mapping[str, Json],
) -> Call:
    """A call with its messages checked.

    Args: said: (message, finish reason) of each choice.
    Raises: RowError for messages that are none, or that were redacted, and for a call without answer.
    """
    if not said:
        raise RowError("the call has no answer: it failed, was cut off, or its content was not recorded")
    messages = chat(named(sent), "the call's messages")
    answers = [message({"role": "assistant", **_object(one)}, "the answer") for one, _ in said]
    for item in (*messages, *answers):
        if item["content"] in _REDACTED:
            raise RowError("the log holds no content: it was redacted where it was written")
    parameters = sampling if isinstance(sampling, Mapping) else {}
    return Call(
        span,
        messages,
        [{"message": one, "finish_reason": why} for one, (_, why) in zip(answers, said, strict=True)],
        list(tools) if tools else None,
        {key: parameters[key] for key in SAMPLING if parameters.get(key) is not None},
        {
            key: value
            for key, value in {**_checked(facts), **_latency(span)}.items()
            if value not in (None, "")
        },
    )


def _checked(facts: Mapping[str, Json]) -> Mapping[str, Json]:
    """Raises: RowError for a count or a cost that is no number."""
    for key in _NUMBERS:
        value = facts.get(key)
        try:
            good = value in (None, "") or math.isfinite(float(str(value)))
        except ValueError:
            good = False
        if not good:
            raise RowError(f"'{key}' of the call is {str(value)[:40]!r}; a number is needed")
    return facts


def _latency(span: Span) -> dict[str, Json]:
    took = span.ended_s - span.started_s
    return {"latency_s": round(took, 6)} if span.started_s and took > 0 else {}


def _object(value: Json) -> JsonObject:
    if not isinstance(value, Mapping):
        raise RowError(f"the answer is {type(value).__name__}; a message is needed")
    return {key: item for key, item in value.items() if key != "role"}


def named(messages: Json) -> Json:
    """Messages with the roles of other libraries (`human`, `ai`) under the usual names."""
    if not isinstance(messages, list):
        return messages
    return [
        {**item, "role": _ROLES.get(str(item.get("role")), item.get("role"))}
        if isinstance(item, Mapping)
        else item
        for item in messages
    ]


def decoded(value: Json, what: str) -> Json:
    """The value of JSON text; any other value unchanged.

    Raises: RowError for text that is not JSON, such as an attribute that was cut off.
    """
    if not isinstance(value, str):
        return value
    try:
        parsed: Json = json.loads(value)
    except ValueError as err:
        raise RowError(f"{what} is text that is not JSON ({err}); was it cut off?") from err
    return parsed


def functions(tools: Json, what: str) -> list[JsonObject] | None:
    """Tool definitions as the chat API has them; None for none.

    Raises: RowError for another value.
    """
    tools = decoded(tools, what)
    if tools in (None, []):
        return None
    if not isinstance(tools, list):
        raise RowError(f"{what} holds {type(tools).__name__}; a list of tools is needed")
    return [_function(decoded(tool, what), what) for tool in tools]


def _function(tool: Json, what: str) -> JsonObject:
    if not isinstance(tool, Mapping):
        raise RowError(f"{what} holds a tool of {type(tool).__name__}; an object is needed")
    if "function" in tool or "name" not in tool:
        return tool
    function = {key: item for key, item in tool.items() if key != "type"}
    if "parameters" in function:
        function["parameters"] = decoded(function["parameters"], what)
    return {"type": "function", "function": function}
