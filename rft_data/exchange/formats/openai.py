"""OpenAI chat logs: request and response pairs, answered batches, and batch input files.

Each choice of a response is an experience, the choices of one request are a group, and a request without
response is a task. What has no column stays in `metadata["openai"]`, so that the log can be written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft_data.core.chat import chat, message, objects, tools, written
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Experience, Task
from rft_data.exchange.formats.records import (
    Choices,
    Format,
    Origin,
    Record,
    Row,
    imported_experience,
    with_metadata,
)

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
)
"""Parameters of a request that become a row's `sampling`."""
_KEPT = "openai"


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request and its response; what rows have no column for is in the mappings besides `request`."""

    request: JsonObject
    messages: Sequence[JsonObject]
    """Messages of the request, in the one form of `chat`."""
    rest_of_row: JsonObject
    rest_of_request: JsonObject
    rest_of_response: JsonObject

    def kept(self, **more: JsonObject) -> JsonObject:
        """The metadata from which the row of the log can be written again."""
        parts = {"row": self.rest_of_row, "request": self.rest_of_request, "response": self.rest_of_response}
        return {_KEPT: {name: part for name, part in {**parts, **more}.items() if part}}


def read_openai(row: Row, origin: Origin) -> Sequence[Record]:
    """The experiences of a request with its response, or the task of a request alone."""
    request = _request(row)
    messages = chat(request.get("messages"), "the request's messages")
    envelope, response = _response(row)
    rest = {**_filled(row, "request", "response", "body"), **({"envelope": envelope} if envelope else {})}
    if response is None:
        alone = _Exchange(request, messages, rest, _filled(request, "messages"), {})
        return [Task(origin.taskset, tuple(messages), split=origin.split, metadata=alone.kept())]
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise RowError("the response has no choices")
    rest_of_request = _filled(request, "messages", "tools", *SAMPLING)
    exchange = _Exchange(request, messages, rest, rest_of_request, _filled(response, "choices"))
    return [_experience(origin, exchange, choice) for choice in choices]


def _experience(origin: Origin, exchange: _Exchange, choice: Json) -> Experience:
    answer = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(answer, Mapping):
        raise RowError("a choice has no message (only chat completions are read)")
    finish, index = choice.get("finish_reason"), choice.get("index", 0)
    if not isinstance(index, int) or not isinstance(finish, str | None):
        raise RowError(
            f"a choice has index {index!r} and finish_reason {finish!r}; a number and a text are needed"
        )
    return imported_experience(
        origin,
        [*exchange.messages, message({"role": "assistant", **answer}, "the response's message")],
        len(exchange.messages),
        group=[exchange.request, exchange.rest_of_row, exchange.rest_of_response],
        member=index,
        tools=tools(exchange.request.get("tools")),
        finish_reason=finish or "",
        sampling=_only(exchange.request, SAMPLING),
        metadata=exchange.kept(choice=_filled(choice, "message", "finish_reason", "index")),
    )


def _request(row: Row) -> JsonObject:
    request = _decoded(row.get("request") if row.get("request") is not None else row.get("body"))
    body = request.get("body") if isinstance(request, Mapping) else None
    if isinstance(body, Mapping):
        return body
    if not isinstance(request, Mapping):
        raise RowError(
            "there is no request; a batch output file has responses only: put each request beside its "
            "response, as 'request' and 'response', by custom_id"
        )
    return request


def _response(row: Row) -> tuple[JsonObject, JsonObject | None]:
    """(what a batch wraps around a response, the body of the response or None)."""
    response = _decoded(row.get("response"))
    body = _answer(response)
    if row.get("error") is not None and body is None:
        raise RowError(f"the request failed: {json.dumps(row['error'])[:200]}")
    if response is None:
        return {}, None
    if not isinstance(response, Mapping):
        raise RowError(f"response holds {type(response).__name__}; a response body is needed")
    if "body" not in response:
        return {}, response
    if body is None:
        raise RowError(f"the request failed with status {response.get('status_code')}")
    return _filled(response, "body"), body


def _answer(response: Json) -> JsonObject | None:
    """The body of a response that succeeded, else None."""
    if not isinstance(response, Mapping) or response.get("status_code") not in (None, 200):
        return None
    body = response.get("body", response)
    return body if isinstance(body, Mapping) else None


def _decoded(value: Json) -> Json:
    """A body; logs often hold it as JSON text."""
    if isinstance(value, str):
        try:
            decoded: Json = json.loads(value)
            return decoded
        except ValueError as err:
            raise RowError(f"a body is text that is not JSON: {err}") from err
    return value


def _filled(value: JsonObject, *but: str) -> JsonObject:
    return {key: item for key, item in value.items() if key not in but and item is not None}


def _only(value: JsonObject, keys: Sequence[str]) -> JsonObject:
    return {key: value[key] for key in keys if value.get(key) is not None}


def write_openai(record: Experience | Task, _: Choices) -> Row:
    """A request with one choice of its response, or a line of a batch input file for a task."""
    kept = _object(record.metadata.get(_KEPT), "openai")
    request, row = _object(kept.get("request"), "openai.request"), _object(kept.get("row"), "openai.row")
    if isinstance(record, Task):
        body = {"messages": _as_sent(record.messages), **request}
        line = {"custom_id": record.task_id, "method": "POST", "url": "/v1/chat/completions"}
        return with_metadata({**line, **row, "body": body}, record.metadata, but=(_KEPT,))
    split = record.prompt_messages
    if len(record.messages) != split + 1:
        raise RowError("the completion is not one message; a response holds one")
    if split == 0:
        raise RowError("there is no prompt; a request needs messages")
    sent: Row = {
        "messages": _as_sent(record.messages[:split]),
        **({"tools": [dict(tool) for tool in record.tools]} if record.tools else {}),
        **record.sampling,
        **request,
    }
    choice: Row = {
        "index": record.member,
        "message": _as_sent(record.messages[split:])[0],
        **_object(kept.get("choice"), "openai.choice"),
    }
    if record.finish_reason:
        choice["finish_reason"] = record.finish_reason
    response = {**_object(kept.get("response"), "openai.response"), "choices": [choice]}
    return with_metadata({"request": sent, "response": response, **row}, record.metadata, but=(_KEPT,))


def _object(value: Json, where: str) -> JsonObject:
    """A part of the metadata; {} when it is not there."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RowError(f"metadata '{where}' holds {type(value).__name__}; an object is needed")
    return value


def _as_sent(messages: Sequence[JsonObject]) -> list[Row]:
    """Messages as the API has them: tool-call arguments are JSON text."""
    made = written(messages)
    for item in made:
        if "tool_calls" in item:
            calls = objects(item["tool_calls"])
            if calls is None:
                raise RowError("a message has tool_calls that are not a list of calls")
            item["tool_calls"] = [_call_as_sent(call) for call in calls]
    return made


def _call_as_sent(call: JsonObject) -> JsonObject:
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        raise RowError(f"a tool call has a function of {type(function).__name__}; an object is needed")
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    named = {**function, "arguments": text}
    return {**call, "function": named} if "function" in call else named


OPENAI = Format(
    "openai",
    (
        "request, response (chat completion bodies)",
        "custom_id, body, response (an answered batch)",
        "custom_id, method, url, body (a batch input file)",
    ),
    (
        frozenset({"request", "response"}),
        frozenset({"body", "response"}),
        frozenset({"custom_id", "body"}),
        frozenset({"custom_id", "response"}),
    ),
    read_openai,
    write_openai,
    ("experiences", "tasks"),
)
