"""The formats of logs, as `rft buffer import` knows them."""

from __future__ import annotations

from functools import partial

from rft_data.exchange.formats.records import Format
from rft_data.exchange.formats.traces.conversations import read_conversation
from rft_data.exchange.formats.traces.langfuse import read_langfuse
from rft_data.exchange.formats.traces.litellm import read_litellm
from rft_data.exchange.formats.traces.otlp import read_otlp
from rft_data.exchange.formats.traces.phoenix import read_phoenix
from rft_data.exchange.formats.traces.spool import Parse, by_conversation


def _log(name: str, parse: Parse, shapes: tuple[str, ...], *needs: str) -> Format:
    return Format(
        name,
        shapes,
        tuple(frozenset(columns.split()) for columns in needs),
        read_conversation,
        regroup=partial(by_conversation, parse),
    )


LOGS = (
    _log(
        "otlp",
        read_otlp,
        ("resourceSpans, resourceLogs (OTLP/JSON with gen_ai.* or llm.* attributes)",),
        "resourceSpans",
        "resourceLogs",
    ),
    _log(
        "phoenix",
        read_phoenix,
        (
            "context, attributes (spans)",
            "context.trace_id, context.span_id, ... (a table)",
            "span_id, annotator_kind",
        ),
        "context attributes",
        "context.trace_id context.span_id",
        "span_id annotator_kind",
    ),
    _log(
        "langfuse",
        read_langfuse,
        (
            "trace_id, type, start_time (observations)",
            "id, observations (a trace)",
            "name, data_type (scores)",
        ),
        "trace_id type start_time",
        "traceId type startTime",
        "id observations",
        "trace observations",
        "name data_type",
        "name dataType",
    ),
    _log("litellm", read_litellm, ("id, call_type, messages (logging payloads)",), "id call_type messages"),
)
