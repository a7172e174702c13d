"""LiteLLM's standard logging payload, as its loggers write it to files and buckets."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json
from rft_data.exchange.formats.records import Row
from rft_data.exchange.formats.traces.attributes import first, inside, seconds, text
from rft_data.exchange.formats.traces.call import Item, Span, answered, decoded, functions

_CALLS = ("completion", "acompletion", "text_completion", "atext_completion")


def read_litellm(row: Row) -> Iterator[Item | RowError]:
    """The call of a payload; nothing for embeddings and other calls of no chat model.

    Raises: RowError for a call that failed, or whose messages are not there.
    """
    name = text(row.get("id"))
    trace = text(row.get("trace_id")) or name
    if not name:
        raise RowError("the payload has no id")
    started, ended = seconds(row.get("startTime")), seconds(row.get("endTime"))
    span = Span(name, trace, "", text(row.get("session_id")), started, ended)
    yield span
    if row.get("call_type") not in _CALLS:
        return
    if row.get("status") == "failure":
        raise RowError(f"the call failed: {text(row.get('error_str'))[:200]}")
    response = decoded(row.get("response"), "response")
    choices = inside(response, "choices")
    parameters = decoded(row.get("model_parameters"), "model_parameters")
    sent = decoded(row.get("messages"), "messages")
    yield answered(
        span,
        sent,
        [_choice(one) for one in choices] if isinstance(choices, list) else [],
        tools=functions(inside(parameters, "tools"), "model_parameters.tools"),
        sampling=parameters,
        facts={
            "model": first([row.get("model"), inside(response, "model")]),
            "input_tokens": row.get("prompt_tokens"),
            "output_tokens": row.get("completion_tokens"),
            "cost_usd": row.get("response_cost"),
        },
    )


def _choice(choice: Json) -> tuple[Json, str]:
    return inside(choice, "message"), text(inside(choice, "finish_reason"))
