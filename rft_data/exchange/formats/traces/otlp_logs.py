"""Log records of OTLP/JSON: calls of models that were logged as events, beside spans or without any.

The conventions have one event for a whole call; older instrumentation wrote one for each message and choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.traces import gen_ai
from rft_data.exchange.formats.traces.attributes import (
    any_value,
    exported,
    first,
    inside,
    list_inside,
    nanoseconds,
    otlp_attributes,
    session,
    text,
    tree,
)
from rft_data.exchange.formats.traces.call import Item, Score, Span, answered

_WHOLE = "gen_ai.client.inference.operation.details"
_CHOICE = "gen_ai.choice"
_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}


def log_items(groups: list[Json]) -> Iterator[Item | RowError]:
    """Items of one export request's log records; a RowError for each call that cannot be read.

    The messages of one call have one span, and lie in one request.
    """
    pieces: dict[tuple[str, str], list[Json]] = {}
    for record in exported(groups, ["scopeLogs"], "logRecords"):
        name = _event(record)
        if name == _WHOLE:
            yield from _guarded(record, partial(_whole, record))
        elif name == gen_ai.EVALUATION:
            yield from _guarded(record, partial(_score, record))
        elif name == _CHOICE or name in _ROLES:
            pieces.setdefault((text(inside(record, "traceId")), text(inside(record, "spanId"))), []).append(
                record
            )
    for records in pieces.values():
        yield from _guarded(records[0], partial(_pieced, records))


def _event(record: Json) -> str:
    """The name of an event; empty for a plain log record."""
    if name := text(inside(record, "eventName")):
        return name
    for item in list_inside(record, "attributes"):
        if inside(item, "key") == "event.name":
            return text(inside(item, "value", "stringValue"))
    return ""


def _guarded(record: Json, read: Callable[[], Iterator[Item]]) -> Iterator[Item | RowError]:
    try:
        yield from list(read())
    except RowError as err:
        named = text(inside(record, "spanId")) or "?", text(inside(record, "traceId")) or "?"
        yield RowError(f"log record of span {named[0]} of trace {named[1]}: {err}")


def _whole(record: Json) -> Iterator[Item]:
    span, attributes = _place(record)
    body = any_value(inside(record, "body"))
    yield span
    if isinstance(body, Mapping):
        attributes = tree({**otlp_attributes(inside(record, "attributes")), **body})
    if failure := text(inside(attributes, "error", "type")):
        raise RowError(f"the call failed: {failure[:200]}")
    yield gen_ai.call(span, attributes, "")


def _score(record: Json) -> Iterator[Score]:
    span, attributes = _place(record)
    when = datetime.fromtimestamp(span.started_s, UTC).isoformat() if span.started_s else None
    yield replace(gen_ai.evaluation(span, attributes), created_at=when)


def _pieced(records: list[Json]) -> Iterator[Item]:
    """The call whose messages and choices are records of their own, in their order."""
    span, attributes = _place(records[0])
    yield span
    bodies = [(_event(record), any_value(inside(record, "body"))) for record in records]
    sent: list[Json] = [_message(name, body) for name, body in bodies if name != _CHOICE]
    said = [
        (inside(body, "message"), text(inside(body, "finish_reason")))
        for name, body in bodies
        if name == _CHOICE
    ]
    messages = [*sent, *(message for message, _ in said)]
    if not sent or any(not _has_content(message) for message in messages):
        raise RowError("the log has no messages of the call, or some without content: it was not recorded")
    facts = {"model": inside(attributes, "gen_ai", "request", "model")}
    yield answered(span, sent, said, tools=None, sampling={}, facts=facts)


def _has_content(message: Json) -> bool:
    return first([inside(message, "content"), inside(message, "tool_calls")]) is not None


def _message(name: str, body: Json) -> JsonObject:
    if not isinstance(body, Mapping):
        raise RowError("a logged message has no content: it was not recorded")
    made = {key: value for key, value in body.items() if key != "id"}
    if _ROLES[name] == "tool" and "id" in body:
        made["tool_call_id"] = body["id"]
    return {"content": None, **made, "role": _ROLES[name]}


def _place(record: Json) -> tuple[Span, JsonObject]:
    """The place of a record, and its attributes."""
    if not inside(record, "traceId") or not inside(record, "spanId"):
        raise RowError("it has no traceId and spanId: it was logged outside of a span")
    attributes = tree(otlp_attributes(inside(record, "attributes")))
    at = nanoseconds(first([inside(record, "timeUnixNano"), inside(record, "observedTimeUnixNano")]))
    return Span(
        text(inside(record, "spanId")), text(inside(record, "traceId")), "", session(attributes), at, at
    ), attributes
