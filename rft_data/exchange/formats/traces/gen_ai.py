"""Calls in the attributes of OpenTelemetry's conventions for GenAI, and in the older form of OpenLLMetry.

The conventions: `gen_ai.input.messages`, `gen_ai.output.messages` (lists of `{"role", "parts"}`),
`gen_ai.system_instructions`, `gen_ai.tool.definitions`. The older form: `gen_ai.prompt.0.content`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.traces.attributes import first, inside, text
from rft_data.exchange.formats.traces.call import Call, Score, Span, answered, decoded, functions

_CALLS = ("chat", "text_completion", "generate_content")
_PARAMETERS = {"stop_sequences": "stop", "choice_count": "n"}
EVALUATION = "gen_ai.evaluation.result"


def is_call(attributes: JsonObject) -> bool:
    """Whether a span is a call of a model by these conventions."""
    operation = inside(attributes, "gen_ai", "operation", "name")
    older = inside(attributes, "llm", "request", "type")
    return operation in _CALLS or (operation is None and older in ("chat", "completion"))


def call(span: Span, attributes: JsonObject, name: str) -> Call:
    """The call that a span's attributes describe. Raises: RowError where they hold none."""
    found = attributes.get("gen_ai")
    usage = inside(found, "usage")
    sent, said = _older(found) if inside(found, "prompt") is not None else _messages(found)
    if not sent:
        raise RowError("the span has no messages: its content was not recorded")
    parameters = inside(found, "request")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    choices = inside(parameters, "choice", "count")
    return answered(
        span,
        sent,
        _with_reasons(said, inside(found, "response", "finish_reasons")),
        tools=_tools(attributes),
        sampling={
            **{_PARAMETERS.get(key, key): value for key, value in parameters.items()},
            **({} if choices is None else {"n": choices}),
        },
        facts={
            "model": first([inside(found, "response", "model"), parameters.get("model")]),
            "name": name,
            "input_tokens": first([inside(usage, "input_tokens"), inside(usage, "prompt_tokens")]),
            "output_tokens": first([inside(usage, "output_tokens"), inside(usage, "completion_tokens")]),
        },
    )


def _tools(attributes: JsonObject) -> list[JsonObject] | None:
    defined = functions(
        inside(attributes, "gen_ai", "tool", "definitions"), "attribute 'gen_ai.tool.definitions'"
    )
    return defined or functions(inside(attributes, "llm", "request", "functions"), "'llm.request.functions'")


def _with_reasons(said: Sequence[tuple[Json, str]], reasons: Json) -> list[tuple[Json, str]]:
    listed = reasons if isinstance(reasons, list) else []
    if len(listed) != len(said):
        return list(said)
    return [(one, why or text(named)) for (one, why), named in zip(said, listed, strict=True)]


def _messages(found: Json) -> tuple[list[Json], list[tuple[Json, str]]]:
    """(messages sent, answers) in the form of the conventions."""
    sent = _listed(inside(found, "input", "messages"), "gen_ai.input.messages")
    said = _listed(inside(found, "output", "messages"), "gen_ai.output.messages")
    system = _listed(inside(found, "system_instructions"), "gen_ai.system_instructions")
    messages: list[Json] = []
    if system and sent:
        messages += _spoken({"role": "system", "parts": system})
    for item in sent:
        messages += _spoken(item)
    answers: list[tuple[Json, str]] = [(_answer(item), text(inside(item, "finish_reason"))) for item in said]
    return messages, answers


def _listed(value: Json, what: str) -> list[Json]:
    value = decoded(value, f"attribute '{what}'")
    if value is None:
        return []
    if not isinstance(value, list):
        raise RowError(f"attribute '{what}' holds {type(value).__name__}; a list is needed")
    return value


def _answer(item: Json) -> JsonObject:
    spoken = _spoken(item)
    if len(spoken) != 1:
        raise RowError("an answer holds the results of tools")
    return spoken[0]


def _spoken(item: Json) -> list[JsonObject]:
    """A message of the chat API; several for the results of several tools."""
    parts = inside(item, "parts")
    if not isinstance(item, Mapping) or not isinstance(parts, list):
        raise RowError("a logged message has no 'parts'")
    results = [part for part in parts if inside(part, "type") == "tool_call_response"]
    others = [part for part in parts if inside(part, "type") != "tool_call_response"]
    if results:
        return [*map(_result, results), *(_spoken({**item, "parts": others}) if others else ())]
    made: dict[str, Json] = {"role": item.get("role"), "content": _content(parts)}
    calls = [_tool_call(part) for part in parts if inside(part, "type") == "tool_call"]
    thoughts = [text(inside(part, "content")) for part in parts if inside(part, "type") == "reasoning"]
    if calls:
        made["tool_calls"] = calls
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if item.get("name"):
        made["name"] = item["name"]
    return [made]


def _result(part: Json) -> JsonObject:
    response = first([inside(part, "response"), inside(part, "result")])
    content = response if isinstance(response, str) else _as_text(response)
    return {"role": "tool", "tool_call_id": inside(part, "id"), "content": content}


def _as_text(value: Json) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _tool_call(part: Json) -> JsonObject:
    function = {"name": inside(part, "name"), "arguments": inside(part, "arguments")}
    named: dict[str, Json] = {"type": "function", "function": function}
    return {"id": inside(part, "id"), **named} if inside(part, "id") else named


def _content(parts: Sequence[Json]) -> Json:
    made: list[JsonObject] = []
    for part in parts:
        kind = inside(part, "type")
        if kind == "text":
            made.append({"type": "text", "text": text(inside(part, "content"))})
        elif kind in ("uri", "blob") and inside(part, "modality") == "image":
            made.append({"type": "image_url", "image_url": {"url": _address(part)}})
        elif kind not in ("tool_call", "reasoning"):
            raise RowError(f"a message holds a part of type {kind!r}; text, images and tools are read")
    if all(part["type"] == "text" for part in made):
        return "\n".join(str(part["text"]) for part in made)
    return list(made)


def _address(part: Json) -> str:
    if inside(part, "type") == "uri":
        return text(inside(part, "uri"))
    return f"data:{text(inside(part, 'mime_type')) or 'image/png'};base64,{text(inside(part, 'content'))}"


def _older(found: Json) -> tuple[list[Json], list[tuple[Json, str]]]:
    """(messages sent, answers) in the form of OpenLLMetry."""
    sent, said = inside(found, "prompt"), inside(found, "completion")
    return (
        [_flat(item) for item in sent] if isinstance(sent, list) else [],
        [(_flat(item), text(inside(item, "finish_reason"))) for item in said]
        if isinstance(said, list)
        else [],
    )


def _flat(item: Json) -> JsonObject:
    if not isinstance(item, Mapping):
        raise RowError("a logged message has neither role nor content")
    made = {key: value for key, value in item.items() if key in ("role", "content", "tool_call_id", "name")}
    made.setdefault("role", "assistant")
    calls = item.get("tool_calls")
    if isinstance(calls, list) and calls:
        made["tool_calls"] = [_tool_call(part) for part in calls]
    made.setdefault("content", None if calls else "")
    return made


def evaluation(span: Span, attributes: JsonObject) -> Score:
    """Score that an event `gen_ai.evaluation.result` gives. Raises: RowError for one without a name."""
    found = inside(attributes, "gen_ai", "evaluation")
    name, value = inside(found, "name"), inside(found, "score", "value")
    if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float | None):
        raise RowError(f"an evaluation has name {name!r} and score {value!r}; a text and a number are needed")
    words = [text(part) for part in (inside(found, "score", "label"), inside(found, "explanation")) if part]
    number = None if value is None else float(value)
    return Score(name, number, ": ".join(words) or None, "gen_ai", span.span_id, span.trace)
