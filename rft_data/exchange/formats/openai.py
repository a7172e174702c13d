"""OpenAI chat logs: request and response pairs, answered batches, and batch input files.

One experience per choice, the choices of one request are a group; a request without response is a task.
What an experience has no column for stays in `metadata["openai"]`, so a log can be written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, Task
from rft_data.exchange.formats.chat import chat, message, tools, written
from rft_data.exchange.formats.records import (
    Choices,
    Format,
    Origin,
    Record,
    Row,
    imported_experience,
    with_metadata,
)

_SAMPLING = (
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
_KEPT = "openai"


def read_openai(row: Row, origin: Origin) -> Sequence[Record]:
    """The experiences of a request with its response, or the task of a request alone."""
    request = _request(row)
    messages = chat(request.get("messages"), "the request's messages")
    envelope, response = _response(row)
    rest = _filled(row, "request", "response", "body")
    kept = {
        "row": {**rest, **({"envelope": envelope} if envelope else {})},
        "request": _filled(request, "messages", "tools", *_SAMPLING),
    }
    if response is None:
        kept["request"] = _filled(request, "messages")
        return [Task(origin.taskset, tuple(messages), split=origin.split, metadata={_KEPT: _nonempty(kept)})]
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise RowError("the response has no choices")
    kept["response"] = _filled(response, "choices")
    group = [request, kept["row"], kept["response"]]
    return [_experience(origin, request, messages, choice, kept, group) for choice in choices]


def _experience(
    origin: Origin,
    request: Mapping[str, Any],
    messages: list[dict[str, Any]],
    choice: Any,
    kept: Mapping[str, Any],
    group: Sequence[object],
) -> Experience:
    if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
        raise RowError("a choice has no message (only chat completions are read)")
    answer = message({"role": "assistant", **choice["message"]}, "the response's message")
    finish = choice.get("finish_reason")
    index = choice.get("index", 0)
    if not isinstance(index, int) or not isinstance(finish, str | None):
        raise RowError("a choice has an index or finish_reason that is none")
    all_kept = {**kept, "choice": _filled(choice, "message", "finish_reason", "index")}
    return imported_experience(
        origin,
        [*messages, answer],
        len(messages),
        group=group,
        member=index,
        tools=tools(request.get("tools")),
        finish_reason=finish or "",
        sampling=_only(request, _SAMPLING),
        metadata={_KEPT: _nonempty(all_kept)},
    )


def _request(row: Row) -> Mapping[str, Any]:
    request = row.get("request") if row.get("request") is not None else row.get("body")
    request = _decoded(request)
    if isinstance(request, Mapping) and isinstance(request.get("body"), Mapping):
        request = request["body"]
    if not isinstance(request, Mapping):
        raise RowError(
            "there is no request; a batch output file has responses only: put each request beside its "
            "response, as 'request' and 'response', by custom_id"
        )
    return request


def _response(row: Row) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """(what a batch wraps around a response, the response itself or None)."""
    response = _decoded(row.get("response"))
    if row.get("error") is not None and not _answered(response):
        raise RowError(f"the request failed: {json.dumps(row['error'])[:200]}")
    if response is None:
        return {}, None
    if not isinstance(response, Mapping):
        raise RowError(f"response holds {type(response).__name__}; a response body is needed")
    if "body" not in response:
        return {}, response
    if not _answered(response):
        raise RowError(f"the request failed with status {response.get('status_code')}")
    return _filled(response, "body"), response["body"]


def _answered(response: Any) -> bool:
    if not isinstance(response, Mapping):
        return False
    return response.get("status_code") in (None, 200) and isinstance(response.get("body", response), Mapping)


def _decoded(value: Any) -> Any:
    """Bodies are often logged as text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as err:
            raise RowError(f"a body is text that is not JSON: {err}") from err
    return value


def _filled(value: Mapping[str, Any], *but: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in but and item is not None}


def _only(value: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value[key] for key in keys if value.get(key) is not None}


def _nonempty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item}


def write_openai(record: Experience | Task, _: Choices) -> Row:
    """A request with one choice of its response, or a line of a batch input file for a task."""
    kept = record.metadata.get(_KEPT, {})
    if isinstance(record, Task):
        body = {"messages": _wire(record.messages), **kept.get("request", {})}
        line = {"custom_id": record.task_id, "method": "POST", "url": "/v1/chat/completions"}
        return with_metadata({**line, **kept.get("row", {}), "body": body}, record.metadata, but=(_KEPT,))
    split = record.prompt_messages
    if len(record.messages) != split + 1:
        raise RowError("the completion is not one message; a response holds one")
    if split == 0:
        raise RowError("there is no prompt; a request needs messages")
    request = {
        "messages": _wire(record.messages[:split]),
        **({"tools": [dict(tool) for tool in record.tools]} if record.tools else {}),
        **record.sampling,
        **kept.get("request", {}),
    }
    choice = {"index": record.member, "message": _wire(record.messages[split:])[0], **kept.get("choice", {})}
    if record.finish_reason:
        choice["finish_reason"] = record.finish_reason
    row = {
        "request": request,
        "response": {**kept.get("response", {}), "choices": [choice]},
        **kept.get("row", {}),
    }
    return with_metadata(row, record.metadata, but=(_KEPT,))


def _wire(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the API has them: tool-call arguments are JSON text."""
    made = written(messages)
    for item in made:
        if "tool_calls" in item:
            item["tool_calls"] = [
                {**call, "function": _as_text(call["function"])} if "function" in call else _as_text(call)
                for call in item["tool_calls"]
            ]
    return made


def _as_text(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


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
