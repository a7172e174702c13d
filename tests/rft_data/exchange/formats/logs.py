"""Logs of calls as others write them: rows of OTLP/JSON, Phoenix and Langfuse."""

import json
from pathlib import Path
from typing import Any

from rft_data.buffer import Buffer
from rft_data.exchange.formats import import_into
from rft_data.exchange.formats.chunk_intake import ImportReport
from tests.rft_data.exchange.formats.conftest import jsonl

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "2+3?"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b.c": 3}}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}
ANSWER = {"role": "assistant", "content": "It is 5."}
TALK = [SYSTEM, ASKED, CALLING, RESULT, ANSWER]
"""A conversation of two calls."""
FIRST, SECOND = ([SYSTEM, ASKED], CALLING), (TALK[:4], ANSWER)
"""(what was sent, what was answered) of these calls."""
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def imported(buffer: Buffer, path: Path, rows: list[Any], **more: Any) -> ImportReport:
    return import_into(buffer, jsonl(path / "log.jsonl", rows), taskset="log", **more)


def stored(buffer: Buffer) -> list[dict[str, Any]]:
    """The experiences, with their JSON columns decoded."""
    rows = buffer.read("experiences").to_pylist()
    for row in rows:
        for column in ("messages", "tools", "sampling", "metadata"):
            row[column] = None if row[column] is None else json.loads(row[column])
    return rows


def sent_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the API takes it: arguments are text."""
    calls = [
        {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
        for c in message.get("tool_calls", [])
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


# --- OTLP/JSON -------------------------------------------------------------------------------------


def value(item: Any) -> dict[str, Any]:
    if isinstance(item, bool):
        return {"boolValue": item}
    if isinstance(item, int):
        return {"intValue": str(item)}
    if isinstance(item, float):
        return {"doubleValue": item}
    if isinstance(item, str):
        return {"stringValue": item}
    if isinstance(item, list):
        return {"arrayValue": {"values": [value(one) for one in item]}}
    return {"kvlistValue": {"values": attributes(item)}}


def attributes(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(item)} for key, item in found.items()]


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def span(name: str, found: dict[str, Any], at: int = 0, trace: str = "t1", **more: Any) -> dict[str, Any]:
    """A span of half a second that begins `at` seconds after 1000."""
    return {
        "traceId": trace,
        "spanId": name,
        "name": "chat tiny",
        "startTimeUnixNano": str((1000 + at) * 10**9),
        "endTimeUnixNano": str((1000 + at) * 10**9 + 5 * 10**8),
        "attributes": attributes(found),
        "status": {},
        **more,
    }


def parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of the conventions for GenAI."""
    if message["role"] == "tool":
        result = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [result]}
    made: list[dict[str, Any]] = []
    if message["content"]:
        made.append({"type": "text", "content": message["content"]})
    made += [{"type": "tool_call", "id": c["id"], **c["function"]} for c in message.get("tool_calls", [])]
    return {"role": message["role"], "parts": made}


def gen_ai(
    sent: list[dict[str, Any]], *said: dict[str, Any], text: bool = True, **more: Any
) -> dict[str, Any]:
    """A call's attributes by the conventions for GenAI; `text`: messages are JSON text."""

    def form(item: Any) -> Any:
        return json.dumps(item) if text else item

    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"] * len(said),
        "gen_ai.system_instructions": form([{"type": "text", "content": sent[0]["content"]}]),
        "gen_ai.input.messages": form([parts(m) for m in sent[1:]]),
        "gen_ai.output.messages": form([{**parts(m), "finish_reason": "stop"} for m in said]),
        "gen_ai.tool.definitions": form([{"type": "function", **ADD["function"]}]),  # type: ignore[dict-item]
        **more,
    }


# --- OpenInference ---------------------------------------------------------------------------------


def flat(prefix: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for place, message in enumerate(map(sent_text, messages)):
        at = f"{prefix}.{place}.message"
        made |= {f"{at}.{key}": message[key] for key in ("role", "content", "tool_call_id") if key in message}
        for number, call in enumerate(message.get("tool_calls", [])):
            here = f"{at}.tool_calls.{number}.tool_call"
            made[f"{here}.id"] = call["id"]
            made |= {f"{here}.function.{key}": call["function"][key] for key in ("name", "arguments")}
    return made


def openinference(sent: list[dict[str, Any]], *said: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "llm.model_name": "tiny",
        "llm.invocation_parameters": json.dumps({"model": "tiny", "temperature": 0.5, "stop": ["END"]}),
        "llm.token_count.prompt": 10,
        "llm.token_count.completion": 3,
        "llm.finish_reason": "stop",
        "llm.tools.0.tool.json_schema": json.dumps(ADD),
        **flat("llm.input_messages", sent),
        **flat("llm.output_messages", list(said)),
        **more,
    }


# --- Langfuse and Phoenix --------------------------------------------------------------------------


def observation(name: str, sent: Any, said: Any, at: int = 0, **more: Any) -> dict[str, Any]:
    """A row of Langfuse's files."""
    return {
        "id": name,
        "trace_id": "t1",
        "type": "GENERATION",
        "start_time": f"2026-01-01 00:00:{at:02}.000000",
        "end_time": f"2026-01-01 00:00:{at:02}.500000",
        "name": "chat tiny",
        "level": "DEFAULT",
        "input": json.dumps(sent),
        "output": json.dumps(said),
        "provided_model_name": "tiny",
        "model_parameters": json.dumps({"temperature": 0.5, "stop": ["END"]}),
        "usage_details": {"input": 10, "output": 3, "total": 13},
        **more,
    }


def phoenix(name: str, found: dict[str, Any], at: int = 0, **more: Any) -> dict[str, Any]:
    """A span of Phoenix's API."""
    return {
        "id": "U3Bhbjox",
        "name": "chat tiny",
        "context": {"trace_id": "t1", "span_id": name},
        "span_kind": found.get("openinference.span.kind", "CHAIN"),
        "parent_id": "root",
        "start_time": f"2026-01-01T00:00:{at:02}+00:00",
        "end_time": f"2026-01-01T00:00:{at:02}.500000+00:00",
        "status_code": "OK",
        "status_message": "",
        "attributes": found,
        **more,
    }
