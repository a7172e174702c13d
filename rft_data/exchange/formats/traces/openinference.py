"""Calls in the attributes of OpenInference (Phoenix, Arize): `llm.input_messages`, `llm.output_messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.traces.attributes import first, inside, seconds, text
from rft_data.exchange.formats.traces.call import Call, Score, Span, answered, decoded, functions

_SCORES = ("annotations", "evaluations")


def is_call(attributes: JsonObject) -> bool:
    """Whether a span is a call of a model by OpenInference."""
    return inside(attributes, "openinference", "span", "kind") == "LLM"


def call(span: Span, attributes: JsonObject, name: str) -> Call:
    """The call that a span's attributes describe. Raises: RowError where they hold none."""
    said = inside(attributes, "llm", "output_messages")
    answers = [_message(item) for item in said] if isinstance(said, Sequence) and said else []
    return answered(
        span,
        [_message(item) for item in _list(inside(attributes, "llm", "input_messages"))],
        _choices(answers, attributes),
        tools=_tools(attributes),
        sampling=decoded(
            inside(attributes, "llm", "invocation_parameters"), "attribute 'llm.invocation_parameters'"
        ),
        facts={
            "model": inside(attributes, "llm", "model_name"),
            "name": name,
            "input_tokens": inside(attributes, "llm", "token_count", "prompt"),
            "output_tokens": inside(attributes, "llm", "token_count", "completion"),
            "cost_usd": inside(attributes, "llm", "cost", "total"),
        },
    )


def _list(value: Json) -> Sequence[Json]:
    if not isinstance(value, list):
        raise RowError("the span has no messages: its content was not recorded")
    return value


def _tools(attributes: JsonObject) -> list[JsonObject] | None:
    listed = inside(attributes, "llm", "tools")
    if not isinstance(listed, list):
        return None
    return functions([inside(tool, "tool", "json_schema") for tool in listed], "attribute 'llm.tools'")


def _choices(messages: Sequence[JsonObject], attributes: JsonObject) -> list[tuple[Json, str]]:
    """The choices; where the log says why they ended. Several messages of one answer are put together."""
    reason = text(inside(attributes, "llm", "finish_reason"))
    body = inside(attributes, "output", "value")
    whole = decoded(body, "output.value") if isinstance(body, str) and body.startswith("{") else None
    listed = inside(whole, "choices")
    ends = [text(inside(item, "finish_reason")) for item in listed] if isinstance(listed, list) else []
    if len(ends) == len(messages):
        return list(zip(messages, ends, strict=True))
    return [(_together(messages), reason)] if messages else []


def _together(messages: Sequence[JsonObject]) -> JsonObject:
    if len(messages) == 1:
        return messages[0]
    contents = [item["content"] for item in messages if isinstance(item.get("content"), str)]
    calls = [call for item in messages for call in (item.get("tool_calls") or ())]  # type: ignore[union-attr]
    return {
        "role": "assistant",
        "content": "\n".join(str(part) for part in contents if part),
        **({"tool_calls": calls} if calls else {}),
    }


def _message(item: Json) -> JsonObject:
    """A message of the chat API."""
    found = inside(item, "message")
    if not isinstance(found, Mapping):
        raise RowError("a logged message has no 'message'")
    content, thinking = _content(found)
    made: dict[str, Json] = {"role": found.get("role"), "content": content}
    made |= {key: found[key] for key in ("name", "tool_call_id") if found.get(key) is not None}
    calls = found.get("tool_calls")
    if isinstance(calls, list) and calls:
        made["tool_calls"] = [_call(inside(one, "tool_call")) for one in calls]
    if thinking:
        made["reasoning_content"] = thinking
    if content is None and "tool_calls" not in made:
        made["content"] = ""
    return made


def _content(found: JsonObject) -> tuple[Json, str]:
    """(content, thinking)."""
    parts = found.get("contents")
    if not isinstance(parts, list):
        return found.get("content"), ""
    listed = [inside(part, "message_content") for part in parts]
    thoughts = [text(inside(part, "text")) for part in listed if inside(part, "type") == "reasoning"]
    made = [_part(part) for part in listed if inside(part, "type") != "reasoning"]
    if all(part["type"] == "text" for part in made):
        return "\n".join(str(part["text"]) for part in made), "\n".join(thoughts)
    return made, "\n".join(thoughts)


def _part(part: Json) -> JsonObject:
    kind = inside(part, "type")
    if kind == "text":
        return {"type": "text", "text": text(inside(part, "text"))}
    url = inside(part, "image", "image", "url")
    if kind == "image" and isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    raise RowError(f"a message holds a part of type {kind!r}; text and images are read")


def _call(call: Json) -> JsonObject:
    function = inside(call, "function")
    if not isinstance(function, Mapping):
        raise RowError("a logged tool call has no function")
    named: dict[str, Json] = {"type": "function", "function": {**function}}
    return {"id": inside(call, "id"), **named} if inside(call, "id") else named


def scores(span: Span, attributes: JsonObject) -> list[Score]:
    """Scores that the span's attributes give it, its trace and its session."""
    found = [(span.span_id, inside(attributes, word), word) for word in _SCORES]
    found += [
        ("", inside(attributes, scope, word), word) for scope in ("trace", "session") for word in _SCORES
    ]
    return [
        score(inside(item, word.removesuffix("s")), about, span.trace)
        for about, listed, word in found
        if isinstance(listed, list)
        for item in listed
    ]


def score(item: Json, about: str, trace: str) -> Score:
    """An annotation of OpenInference or Phoenix. Raises: RowError for one without a name."""
    name, result = inside(item, "name"), inside(item, "result")
    if not isinstance(item, Mapping) or not isinstance(name, str) or not name:
        raise RowError("an annotation has no name")
    result = result if isinstance(result, Mapping) else item
    value = result.get("score")
    value = None if value != value else value  # NaN, with which tables mark what is missing
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise RowError(f"annotation '{name}' has score {value!r}; a number is needed")
    words = [text(part) for part in (result.get("label"), result.get("explanation")) if part]
    when = first([item.get("updated_at"), item.get("created_at")])
    seconds(when)
    return Score(
        name,
        None if value is None else float(value),
        ": ".join(words) or None,
        author=":".join(
            part
            for part in ("openinference", text(item.get("annotator_kind")), text(item.get("identifier")))
            if part
        ),
        span_id=about,
        trace=trace,
        created_at=None if when is None else text(when),
    )
