"""Spans that the real instrumentation of OpenInference writes, exported as OTLP/JSON."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.formats import import_into
from tests.rft_data.exchange.formats.conftest import quarantined
from tests.rft_data.exchange.formats.logs import (
    ADD,
    ANSWER,
    ASKED,
    CALLING,
    RESULT,
    SYSTEM,
    sent_text,
    stored,
)

pytest.importorskip("openinference.instrumentation.openai")


@pytest.fixture
def written() -> Any:
    """What a client did, as one export request."""
    import httpx
    import openai
    from google.protobuf.json_format import MessageToDict
    from openinference.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    replies = [sent_text(CALLING), ANSWER]

    def reply(request: httpx.Request) -> httpx.Response:
        if not replies:
            return httpx.Response(429, json={"error": {"message": "slow down"}})
        choice = {"index": 0, "message": replies.pop(0), "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        body = {"id": "r", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
        return httpx.Response(200, json={**body, "usage": usage})

    memory, provider, library = InMemorySpanExporter(), TracerProvider(), OpenAIInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    library.instrument(tracer_provider=provider)
    try:
        http = httpx.Client(transport=httpx.MockTransport(reply))
        client = openai.OpenAI(api_key="x", base_url="http://model/v1", http_client=http, max_retries=0)
        ask = client.chat.completions.create
        with provider.get_tracer("app").start_as_current_span("run"):
            sent: list[Any] = [SYSTEM, ASKED]
            said = ask(model="tiny", messages=sent, tools=[ADD], temperature=0.5).choices[0].message  # type: ignore[list-item]
            sent += [said.model_dump(exclude_none=True), RESULT]
            ask(model="tiny", messages=sent, tools=[ADD], temperature=0.5)  # type: ignore[list-item]
            with pytest.raises(openai.RateLimitError):
                ask(model="tiny", messages=sent)
    finally:
        library.uninstrument()
    return _with_hex_ids(MessageToDict(encode_spans(memory.get_finished_spans())))


def _with_hex_ids(value: Any) -> Any:
    """OTLP/JSON has ids as hex; protobuf's own JSON has them as base64."""
    if isinstance(value, list):
        return [_with_hex_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: b64decode(item).hex() if key in ("traceId", "spanId", "parentSpanId") else _with_hex_ids(item)
        for key, item in value.items()
    }


@pytest.mark.slow
def test_what_a_client_did_is_one_conversation(written: Any, buffer: Buffer, tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    path.write_text(json.dumps(written, indent=1))
    report = import_into(buffer, path)
    assert (report.format, report.stored, report.quarantined) == ("otlp", 1, 1), report
    [row] = stored(buffer)
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][2]["tool_calls"] == CALLING["tool_calls"]
    assert row["messages"][4]["content"] == "It is 5."
    assert (row["tools"], row["sampling"], row["prompt_messages"]) == ([ADD], {"temperature": 0.5}, 2)
    assert row["metadata"]["log"]["input_tokens"] == 14
    assert "the call failed: RateLimitError" in quarantined(buffer)[0]
