"""Log records of OTLP/JSON: calls as events, one for a whole call or one for each message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from tests.rft_data.exchange.formats.conftest import quarantined
from tests.rft_data.exchange.formats.logs import (
    FIRST,
    SECOND,
    TALK,
    attributes,
    gen_ai,
    imported,
    sent_text,
    stored,
    value,
)


def _record(event: str, found: dict[str, Any], at: int, name: str = "s1", **more: Any) -> dict[str, Any]:
    place = {"traceId": "t1", "spanId": name, "timeUnixNano": str((1000 + at) * 10**9)}
    return {**place, "eventName": event, "attributes": attributes(found), **more}


def _logs(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": list(records)}]}]}


def _pieces(sent: list[dict[str, Any]], said: dict[str, Any], at: int, name: str) -> list[dict[str, Any]]:
    """A call in the older form: a record for each message, and one for the choice."""
    made = []
    for message in map(sent_text, sent):
        body = {("id" if key == "tool_call_id" else key): item for key, item in message.items()}
        body.pop("role")
        found = {"event.name": f"gen_ai.{message['role']}.message"}
        made.append(_record("", found, at, name, body=value(body)))
    choice = {"index": 0, "finish_reason": "stop", "message": sent_text(said)}
    return [*made, _record("gen_ai.choice", {}, at, name, body=value(choice))]


DETAILS = "gen_ai.client.inference.operation.details"
LOG_FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "one event for a call": lambda: _logs(
        _record("other", {}, 0, "s0"),
        _record(DETAILS, gen_ai(*SECOND, text=False), 2, "s2"),
        _record(DETAILS, gen_ai(*FIRST, text=False), 1, "s1"),
    ),
    "an event for each message": lambda: _logs(*_pieces(*FIRST, 1, "s1"), *_pieces(*SECOND, 2, "s2")),
}


@pytest.mark.parametrize("form", LOG_FORMS)
def test_log_records_are_a_conversation_as_spans_are(form: str, buffer: Buffer, tmp_path: Path) -> None:
    report = imported(buffer, tmp_path, [LOG_FORMS[form]()])
    assert (report.format, report.rows, report.stored) == ("otlp", 1, 1), quarantined(buffer)
    [row] = stored(buffer)
    assert row["messages"] == [dict(sorted(m.items())) for m in TALK]
    assert (row["prompt_messages"], row["finish_reason"]) == (2, "stop")
    log = row["metadata"]["log"]
    assert (log["spans"], log["calls"], log["started_s"]) == (["s1", "s2"], 2, 1001.0)
    assert "latency_s" not in log, "a record has one time"


def test_evaluations_that_are_log_records_are_feedback(buffer: Buffer, tmp_path: Path) -> None:
    said = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5}
    record = _record("gen_ai.evaluation.result", said, 3)
    imported(buffer, tmp_path, [_logs(record, _record(DETAILS, gen_ai(*FIRST), 1))])
    [item] = buffer.read("feedback").to_pylist()
    assert (item["key"], item["value"], item["created_at"].timestamp()) == ("reward", 0.5, 1003.0)


def test_log_records_that_cannot_be_read_say_why(buffer: Buffer, tmp_path: Path) -> None:
    lacking = _pieces(*FIRST, 1, "silent")
    lacking[0]["body"] = value({"role": "system"})
    rows = [
        _logs(
            *lacking,
            *_pieces(*FIRST, 1, "unanswered")[:-1],
            _record(DETAILS, {"gen_ai.operation.name": "chat"}, 1, "bare"),
            _record(DETAILS, {**gen_ai(*FIRST), "error.type": "timeout"}, 1, "failed"),
            {**_record(DETAILS, gen_ai(*FIRST), 1), "spanId": ""},
            _record(DETAILS, gen_ai(*FIRST), 1, "late", timeUnixNano="soon"),
            _record(DETAILS, gen_ai(*FIRST), 1, "good"),
        )
    ]
    report = imported(buffer, tmp_path, rows)
    assert (report.stored, report.quarantined) == (1, 6)
    problems = "\n".join(quarantined(buffer))
    for why in (
        "span silent of trace t1: the log has no messages of the call, or some without content",
        "span unanswered of trace t1: the call has no answer",
        "span bare of trace t1: the span has no messages",
        "span failed of trace t1: the call failed: timeout",
        "logged outside of a span",
        "span late of trace t1: it has the time 'soon'",
    ):
        assert why in problems, problems
