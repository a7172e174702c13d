"""Langfuse exports: observations and scores (blob storage, API, page), and a trace as one object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.records import Row
from rft_data.exchange.formats.traces.attributes import first, inside, seconds, text
from rft_data.exchange.formats.traces.call import Call, Item, Score, Span, answered, decoded, functions


def read_langfuse(row: Row) -> Iterator[Item | RowError]:
    """The observations and scores of a row: one of them, or a trace with all of its own.

    Raises: RowError for a row that is neither.
    """
    observations, scores = row.get("observations"), row.get("scores")
    if isinstance(observations, list):
        inner = row.get("trace") if isinstance(row.get("trace"), Mapping) else row
        of_trace = {"trace_id": inside(inner, "id"), "session_id": first(_either(inner, "session_id"))}
        for item in observations:
            yield from _one(item, of_trace)
        for item in scores if isinstance(scores, list) else []:
            yield from _one(item, of_trace, score=True)
        return
    is_score = "data_type" in row or "dataType" in row
    yield from _one(row, {}, score=is_score)


def _one(item: Json, of_trace: JsonObject, *, score: bool = False) -> Iterator[Item | RowError]:
    if not isinstance(item, Mapping):
        yield RowError(f"an observation or a score is {type(item).__name__}; an object is needed")
        return
    plain = {**of_trace, **_snake(item)}
    try:
        yield from [_score(plain)] if score else _observation(plain)
    except RowError as err:
        yield RowError(f"{'score' if score else 'observation'} {text(plain.get('id')) or '?'}: {err}")


def _either(item: Json, key: str) -> list[Json]:
    return [inside(_snake(item), key)] if isinstance(item, Mapping) else []


def _snake(item: JsonObject) -> dict[str, Json]:
    """Keys in the spelling of files (`trace_id`), not that of the API (`traceId`); nulls are left out."""
    named = (
        ("".join(f"_{c.lower()}" if c.isupper() else c for c in key), value) for key, value in item.items()
    )
    return {key: value for key, value in named if value is not None}


def _observation(item: JsonObject) -> Iterator[Item]:
    name, trace = text(item.get("id")), text(item.get("trace_id"))
    if not name or not trace:
        raise RowError("it has no id and no trace_id")
    span = Span(
        name,
        trace,
        text(item.get("parent_observation_id")),
        text(item.get("session_id")),
        seconds(item.get("start_time")),
        seconds(item.get("end_time")),
    )
    yield span
    if item.get("type") == "GENERATION":
        yield _call(span, item)


def _call(span: Span, item: JsonObject) -> Call:
    if item.get("level") == "ERROR":
        raise RowError(f"the call failed: {text(item.get('status_message'))[:200]}")
    sent, tools = _sent(_maybe_json(item.get("input")))
    usage = decoded(item.get("usage_details", item.get("usage")), "usage_details")
    cost = decoded(item.get("cost_details"), "cost_details")
    return answered(
        span,
        sent,
        _said(_maybe_json(item.get("output"))),
        tools=functions(tools, "the input's tools"),
        sampling=decoded(item.get("model_parameters"), "model_parameters"),
        facts={
            "model": first([item.get("provided_model_name"), item.get("model")]),
            "name": item.get("name"),
            "input_tokens": first([inside(usage, "input"), inside(usage, "promptTokens")]),
            "output_tokens": first([inside(usage, "output"), inside(usage, "completionTokens")]),
            "cost_usd": first([item.get("total_cost"), inside(cost, "total")]),
        },
    )


def _maybe_json(value: Json) -> Json:
    """The value of JSON text that is a list or an object; other text stays text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            parsed: Json = json.loads(value)
        except ValueError:
            return value
        return parsed
    return value


def _sent(value: Json) -> tuple[Json, Json]:
    """(messages, tools) of an input: messages, a request with messages, one message, or a text."""
    if value is None:
        raise RowError("the observation has no input: its content was not recorded")
    if isinstance(value, str):
        return [{"role": "user", "content": value}], None
    if isinstance(value, Mapping) and "messages" in value:
        return _maybe_json(value["messages"]), value.get("tools")
    return ([value] if isinstance(value, Mapping) else value), None


def _said(value: Json) -> list[tuple[Json, str]]:
    """The choices of an output: a response, a message, a list of messages, or a text."""
    if isinstance(value, str):
        return [({"content": value}, "")] if value else []
    choices = inside(value, "choices")
    if isinstance(choices, list):
        return [(inside(one, "message"), text(inside(one, "finish_reason"))) for one in choices]
    if isinstance(value, Mapping):
        return [(inside(value, "message") or value, text(value.get("finish_reason")))]
    return [(one, "") for one in value] if isinstance(value, list) else []


def _score(item: JsonObject) -> Score:
    name, value = item.get("name"), item.get("value")
    if not isinstance(name, str) or not name:
        raise RowError("it has no name")
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise RowError(f"its value is {value!r}; a number is needed")
    if item.get("data_type") == "CATEGORICAL":
        value = None
    words = [text(part) for part in (item.get("string_value"), item.get("comment")) if part]
    seconds(item.get("timestamp"))
    return Score(
        name,
        None if value is None else float(value),
        ": ".join(words) or None,
        author=":".join(
            part for part in ("langfuse", text(item.get("source")), text(item.get("author_user_id"))) if part
        ),
        span_id=text(item.get("observation_id")),
        trace=text(item.get("trace_id")),
        created_at=text(item.get("timestamp")) or None,
    )
