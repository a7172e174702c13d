"""OTLP/JSON: spans and log records as OpenTelemetry's collectors and exporters write them to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.records import Row
from rft_data.exchange.formats.traces import gen_ai, openinference
from rft_data.exchange.formats.traces.attributes import (
    exported,
    inside,
    list_inside,
    nanoseconds,
    otlp_attributes,
    session,
    text,
    tree,
)
from rft_data.exchange.formats.traces.call import Item, Score, Span
from rft_data.exchange.formats.traces.otlp_logs import log_items

_FAILED = (2, "STATUS_CODE_ERROR")
_SCOPES = ("scopeSpans", "instrumentationLibrarySpans")
"""Name of a group's list of scopes, and the one that older exporters wrote."""


def read_otlp(row: Row) -> Iterator[Item | RowError]:
    """The spans or log records of one export request; a RowError for each that cannot be read.

    Raises: RowError if the row is no export request.
    """
    if not any(isinstance(row.get(name), list) for name in ("resourceSpans", "resourceLogs")):
        raise RowError("there is no list 'resourceSpans' or 'resourceLogs'")
    for span in exported(list_inside(row, "resourceSpans"), _SCOPES, "spans"):
        yield from items(span)
    yield from log_items(list_inside(row, "resourceLogs"))


def items(raw: Json) -> Iterator[Item | RowError]:
    """Content of one span."""
    try:
        span, attributes = _span(raw)
        yield from spoken(span, attributes, text(inside(raw, "name")), _failure(raw))
        yield from _events(raw, span)
    except RowError as err:
        yield RowError(f"span {text(inside(raw, 'spanId')) or '?'} of {_trace(raw)}: {err}")


def spoken(span: Span, attributes: JsonObject, name: str, failure: str) -> Iterator[Item]:
    """A span with its attributes as a call of a model, or as a span that is none; and the scores in it.

    Raises: RowError for a call that failed, or that cannot be read.
    """
    yield span
    yield from openinference.scores(span, attributes)
    convention = next((one for one in (openinference, gen_ai) if one.is_call(attributes)), None)
    if convention is None:
        return
    if failure:
        raise RowError(f"the call failed: {failure[:200]}")
    yield convention.call(span, attributes, name)


def _span(raw: Json) -> tuple[Span, JsonObject]:
    if not isinstance(raw, Mapping) or not raw.get("traceId") or not raw.get("spanId"):
        raise RowError("a span has no traceId and spanId")
    attributes = tree(otlp_attributes(raw.get("attributes")))
    started, ended = nanoseconds(raw.get("startTimeUnixNano")), nanoseconds(raw.get("endTimeUnixNano"))
    parent = text(raw.get("parentSpanId"))
    made = Span(text(raw["spanId"]), text(raw["traceId"]), parent, session(attributes), started, ended)
    return made, attributes


def _failure(raw: Json) -> str:
    if inside(raw, "status", "code") not in _FAILED:
        return ""
    return text(inside(raw, "status", "message")) or "the span's status is an error"


def _events(raw: Json, span: Span) -> Iterator[Score]:
    for event in list_inside(raw, "events"):
        if inside(event, "name") == gen_ai.EVALUATION:
            made = gen_ai.evaluation(span, tree(otlp_attributes(inside(event, "attributes"))))
            at = nanoseconds(inside(event, "timeUnixNano"))
            when = datetime.fromtimestamp(at, UTC).isoformat() if at else None
            yield Score(made.name, made.value, made.text, made.author, made.span_id, made.trace, when)


def _trace(raw: Json) -> str:
    return f"trace {text(inside(raw, 'traceId')) or '?'}"
