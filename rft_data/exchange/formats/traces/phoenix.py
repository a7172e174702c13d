"""Spans and annotations as Phoenix exports them: its API's JSON, and its tables of spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.exchange.formats.records import Row
from rft_data.exchange.formats.traces.attributes import inside, seconds, session, text, tree
from rft_data.exchange.formats.traces.call import Item, Span
from rft_data.exchange.formats.traces.openinference import score
from rft_data.exchange.formats.traces.otlp import spoken

_ATTRIBUTES = "attributes."


def read_phoenix(row: Row) -> Iterator[Item | RowError]:
    """A span with the annotations in it, or an annotation alone.

    Raises: RowError for a row that is neither.
    """
    whole = _whole(row)
    if "context" not in whole:
        yield score(row, text(row.get("span_id")), text(row.get("trace_id")))
        return
    span, attributes = _span(whole)
    try:
        yield from spoken(span, attributes, text(whole.get("name")), _failure(whole))
    except RowError as err:
        yield RowError(f"span {span.span_id} of trace {span.trace}: {err}")
    listed = whole.get("annotations")
    for item in listed if isinstance(listed, list) else []:
        yield score(item, span.span_id, span.trace)


def _whole(row: Row) -> JsonObject:
    """A row of a table as the API has it: `context.trace_id` and `attributes.llm...` are columns there."""
    cells = {key: value for key, value in row.items() if key.startswith(_ATTRIBUTES)}
    if not cells:
        return {**tree({key: value for key, value in row.items() if key.startswith("context.")}), **row}
    attributes = {key.removeprefix(_ATTRIBUTES): value for key, value in cells.items()}
    return {**_whole({key: row[key] for key in row if key not in cells}), "attributes": attributes}


def _span(whole: JsonObject) -> tuple[Span, JsonObject]:
    trace, name = inside(whole, "context", "trace_id"), inside(whole, "context", "span_id")
    if not trace or not name:
        raise RowError("a span has no context.trace_id and context.span_id")
    found = whole.get("attributes")
    attributes = tree(found) if isinstance(found, Mapping) else {}
    kind: dict[str, Json] = {"openinference": {"span": {"kind": whole.get("span_kind")}}}
    started, ended = seconds(whole.get("start_time")), seconds(whole.get("end_time"))
    span = Span(text(name), text(trace), text(whole.get("parent_id")), session(attributes), started, ended)
    return span, {**kind, **attributes}


def _failure(whole: JsonObject) -> str:
    if whole.get("status_code") != "ERROR":
        return ""
    return text(whole.get("status_message")) or "the span's status is an error"
