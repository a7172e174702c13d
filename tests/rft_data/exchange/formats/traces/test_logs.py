"""Logs of calls that others wrote: every format, conversations, scores, and what cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.exchange.formats import import_into
from tests.rft_data.exchange.formats.conftest import quarantined
from tests.rft_data.exchange.formats.logs import (
    ADD,
    ANSWER,
    ASKED,
    CALLING,
    FIRST,
    SECOND,
    SYSTEM,
    TALK,
    attributes,
    gen_ai,
    imported,
    observation,
    openinference,
    otlp,
    phoenix,
    sent_text,
    span,
    stored,
)

DATA = Path(__file__).parents[4] / "data"


def _older(sent: list[dict[str, Any]], said: dict[str, Any]) -> dict[str, Any]:
    """A call's attributes in the form of OpenLLMetry."""
    made: dict[str, Any] = {"llm.request.type": "chat", "gen_ai.request.model": "tiny"}
    made |= {"gen_ai.request.temperature": 0.5, "gen_ai.request.stop_sequences": ["END"]}
    made |= {"gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 3}
    made |= {
        "llm.request.functions.0.name": "add",
        "llm.request.functions.0.parameters": '{"type": "object"}',
    }
    for prefix, messages in (("gen_ai.prompt", sent), ("gen_ai.completion", [said])):
        for place, message in enumerate(map(sent_text, messages)):
            at = f"{prefix}.{place}"
            made |= {f"{at}.{k}": message[k] for k in ("role", "content", "tool_call_id") if k in message}
            for number, call in enumerate(message.get("tool_calls", [])):
                made[f"{at}.tool_calls.{number}.id"] = call["id"]
                made |= {f"{at}.tool_calls.{number}.{k}": v for k, v in call["function"].items()}
    made["gen_ai.completion.0.finish_reason"] = "stop"
    return made


def _choice(said: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": sent_text(said), "finish_reason": "stop"}]}


def _camel(row: dict[str, Any]) -> dict[str, Any]:
    named = {"trace_id": "traceId", "start_time": "startTime", "end_time": "endTime"}
    named |= {"model_parameters": "modelParameters", "usage_details": "usageDetails"}
    return {named.get(key, key): item for key, item in row.items()}


FORMS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "the conventions for GenAI, as text": (
        "otlp",
        [otlp(span("s2", gen_ai(*SECOND), 2)), otlp(span("s1", gen_ai(*FIRST), 1), span("s0", {"x": 1}))],
    ),
    "the conventions for GenAI, structured": (
        "otlp",
        [otlp(span("s1", gen_ai(*FIRST, text=False), 1), span("s2", gen_ai(*SECOND, text=False), 2))],
    ),
    "OpenLLMetry": ("otlp", [otlp(span("s1", _older(*FIRST), 1), span("s2", _older(*SECOND), 2))]),
    "OpenInference": (
        "otlp",
        [otlp(span("s1", openinference(*FIRST), 1), span("s2", openinference(*SECOND), 2))],
    ),
    "scopes as older exporters name them": (
        "otlp",
        [
            {"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": [one]}]}]}
            for one in (span("s1", gen_ai(*FIRST), 1), span("s2", gen_ai(*SECOND), 2))
        ],
    ),
    "spans of Phoenix": (
        "phoenix",
        [
            phoenix("s1", openinference(*FIRST), 1),
            phoenix("s2", openinference(*SECOND), 2),
            phoenix("s0", {}),
        ],
    ),
    "observations in Langfuse's files": (
        "langfuse",
        [
            observation("s1", {"messages": FIRST[0], "tools": [ADD]}, _choice(CALLING), 1),
            observation("s2", {"messages": SECOND[0], "tools": [ADD]}, _choice(ANSWER), 2),
            observation("s0", "x", "y", type="SPAN"),
        ],
    ),
    "observations of Langfuse's API": (
        "langfuse",
        [
            _camel(observation("s1", {"messages": FIRST[0], "tools": [ADD]}, _choice(CALLING), 1)),
            _camel(observation("s2", {"messages": SECOND[0], "tools": [ADD]}, _choice(ANSWER), 2)),
        ],
    ),
}
"""(format, rows) of a log with the two calls of one conversation."""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_calls_of_a_trace_are_one_conversation_in_every_form(
    form: str, buffer: Buffer, tmp_path: Path
) -> None:
    name, rows = FORMS[form]
    report = imported(buffer, tmp_path, rows)
    assert (report.format, report.rows, report.stored) == (name, 1, 1), report
    [row] = stored(buffer)
    assert row["messages"] == [dict(sorted(m.items())) for m in TALK]
    assert (row["prompt_messages"], row["finish_reason"], row["source"]) == (2, "stop", "import")
    assert row["token_ids"] is None
    assert row["version_max"] is None
    assert row["sampling"] == {"temperature": 0.5, "stop": ["END"]}
    assert row["tools"] == [ADD]
    log = row["metadata"]["log"]
    assert {k: log[k] for k in ("calls", "model", "input_tokens", "output_tokens", "latency_s", "spans")} == {
        "calls": 2, "model": "tiny", "spans": ["s1", "s2"],
        "input_tokens": 20, "output_tokens": 6, "latency_s": 1,
    }  # fmt: skip
    again = imported(buffer, tmp_path, rows)
    assert (again.stored, again.already_there) == (0, 1)


@pytest.mark.slow
def test_a_file_that_litellm_wrote(buffer: Buffer) -> None:
    report = import_into(buffer, DATA / "litellm.jsonl")
    assert (report.format, report.stored, report.quarantined) == ("litellm", 1, 1)
    [row] = stored(buffer)
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2}}
    assert row["messages"][4]["content"] == "It is 5."
    assert row["metadata"]["log"]["traces"] == ["s-1"]
    assert row["metadata"]["log"]["cost_usd"] == pytest.approx(2.7e-05)
    assert "the call failed: litellm.RateLimitError: slow down" in quarantined(buffer)[0]


@pytest.mark.slow
def test_a_table_of_phoenix(buffer: Buffer, tmp_path: Path) -> None:
    """Its cells hold lists of objects with dotted keys, times, and NaN for what is missing."""
    rows = []
    for name, (sent, said) in (("s1", FIRST), ("s2", SECOND)):
        row = phoenix(name, {}, int(name[1]))
        listed = {
            key: [
                {
                    "message.role": m["role"],
                    "message.content": m["content"],
                    "message.tool_calls": [
                        {
                            "tool_call.id": c["id"],
                            "tool_call.function.name": c["function"]["name"],
                            "tool_call.function.arguments": c["function"]["arguments"],
                        }
                        for c in sent_text(m).get("tool_calls", [])
                    ],
                    "message.tool_call_id": m.get("tool_call_id"),
                }
                for m in messages
            ]
            for key, messages in (("input_messages", sent), ("output_messages", [said]))
        }
        rows.append(
            {
                "name": row["name"],
                "span_kind": "LLM",
                "context.trace_id": "t1",
                "context.span_id": name,
                "status_code": "OK",
                "attributes.llm.token_count.prompt": float("nan"),
                "attributes.llm.model_name": "tiny",
                **{f"attributes.llm.{key}": value for key, value in listed.items()},
            }
        )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "spans.parquet")
    report = import_into(buffer, tmp_path / "spans.parquet")
    assert (report.format, report.stored, report.quarantined) == ("phoenix", 1, 0), report
    [row] = stored(buffer)
    assert [m["content"] for m in row["messages"]] == [m["content"] for m in TALK]
    assert "input_tokens" not in row["metadata"]["log"]


@pytest.mark.slow
def test_one_object_over_several_lines_is_read(buffer: Buffer, tmp_path: Path) -> None:
    """As a trace is downloaded."""
    trace = {
        "trace": {"id": "t9", "sessionId": "s9"},
        "observations": [_camel(observation("a", [ASKED], ANSWER))],
        "scores": [{"id": "x", "name": "reward", "value": 1, "dataType": "NUMERIC", "source": "API"}],
    }
    del trace["observations"][0]["traceId"]  # type: ignore[attr-defined]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace, indent=2))
    report = import_into(buffer, path)
    assert (report.format, report.stored, report.new["feedback"]) == ("langfuse", 1, 1), report
    assert stored(buffer)[0]["metadata"]["log"]["session"] == "s9"
    path.write_text(json.dumps(trace, indent=2) + "\n{}\n")
    with pytest.raises(RowError, match=r"something follows the object"):
        import_into(buffer, path)
    path.write_text(json.dumps(trace, indent=2)[:-20])
    with pytest.raises(RowError, match=r"cannot be read on"):
        import_into(buffer, path)


# --- conversations ---------------------------------------------------------------------------------


def _talk(*calls: tuple[list[dict[str, Any]], dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A trace with these calls, one a second."""
    return otlp(*(span(f"s{n}", openinference(*call), n, **more) for n, call in enumerate(calls)))


def _trained(row: dict[str, Any]) -> list[str]:
    return [m["content"] for m in row["messages"][row["prompt_messages"] :] if m["role"] == "assistant"]


def _say(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": text}


@pytest.mark.slow
def test_every_answer_is_in_the_completion_of_one_row(buffer: Buffer, tmp_path: Path) -> None:
    """A branch, a compaction and a sub-agent begin rows of their own; no answer is trained on twice."""
    one, two, other, late = _say("one"), _say("two"), _say("other"), _say("late")
    more = _say("more?", "user")
    summary = _say("summary: one", "user")
    rows = [
        _talk(
            ([ASKED], one),
            ([ASKED, one, more], two),
            ([ASKED, one, more], other),  # the same question again: a branch
            ([_say("sub task", "user")], _say("sub answer")),
            ([summary, more], late),
        )
    ]
    report = imported(buffer, tmp_path, rows)
    assert (report.rows, report.stored, report.new["experiences"]) == (1, 1, 4)
    trained = [_trained(row) for row in stored(buffer)]
    assert trained == [["one", "two"], ["other"], ["sub answer"], ["late"]]


@pytest.mark.slow
def test_a_history_sent_back_without_its_thinking_is_the_same_conversation(
    buffer: Buffer, tmp_path: Path
) -> None:
    thinking = gen_ai([SYSTEM, ASKED], ANSWER)
    thinking["gen_ai.output.messages"] = json.dumps(
        [
            {
                "role": "assistant",
                "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "It is 5.\n"}],
            }
        ]
    )
    later = gen_ai([SYSTEM, ASKED, ANSWER, _say("Sure?", "user")], _say("Yes."))
    imported(buffer, tmp_path, [otlp(span("a", thinking, 1), span("b", later, 2))])
    [row] = stored(buffer)
    assert row["messages"][2] == {"role": "assistant", "content": "It is 5.\n", "reasoning_content": "hm"}
    assert _trained(row) == ["It is 5.\n", "Yes."]


@pytest.mark.slow
def test_the_traces_of_one_session_are_one_conversation(buffer: Buffer, tmp_path: Path) -> None:
    more = _say("And 4+4?", "user")
    rows = [
        otlp(
            span("b", openinference([ASKED, ANSWER, more], _say("8")), 2, "t2"),
            span("root2", {"session.id": "one"}, 2, "t2"),
        ),
        otlp(span("a", openinference([ASKED], ANSWER, **{"session.id": "one"}), 1, "t1")),
        otlp(span("c", openinference([ASKED], ANSWER), 1, "t3")),
    ]
    report = imported(buffer, tmp_path, rows)
    assert report.new["experiences"] == 2
    assert [_trained(row) for row in stored(buffer)] == [["It is 5.", "8"], ["It is 5."]]
    assert stored(buffer)[0]["metadata"]["log"]["traces"] == ["t1", "t2"]


@pytest.mark.slow
def test_traces_of_a_session_that_number_their_spans_alike_lose_no_call(
    buffer: Buffer, tmp_path: Path
) -> None:
    rows = [
        otlp(span("1", openinference([_say(text, "user")], _say(text), **{"session.id": "one"}), 1, text))
        for text in ("a", "b")
    ]
    assert imported(buffer, tmp_path, rows).new["experiences"] == 2
    assert [_trained(row) for row in stored(buffer)] == [["a"], ["b"]]


@pytest.mark.slow
def test_choices_of_one_call_are_a_group(buffer: Buffer, tmp_path: Path) -> None:
    found = gen_ai([SYSTEM, ASKED], ANSWER, _say("6"))
    going_on = gen_ai([SYSTEM, ASKED, ANSWER, _say("Sure?", "user")], _say("Yes."))
    imported(buffer, tmp_path, [otlp(span("a", found, 1), span("b", going_on, 2))])
    rows = stored(buffer)
    assert [_trained(row) for row in rows] == [["It is 5."], ["6"], ["Yes."]]
    assert rows[0]["group_id"] == rows[1]["group_id"] != rows[2]["group_id"]
    assert [row["member"] for row in rows[:2]] == [0, 1]


@pytest.mark.slow
def test_a_call_that_two_libraries_logged_is_one_call(buffer: Buffer, tmp_path: Path) -> None:
    inner = span("in", gen_ai([SYSTEM, ASKED], ANSWER), 1, parentSpanId="out")
    inner["endTimeUnixNano"] = inner["startTimeUnixNano"]
    outer = span("out", openinference([SYSTEM, ASKED], ANSWER), 1)
    later = span("again", openinference([SYSTEM, ASKED], ANSWER), 9)
    imported(buffer, tmp_path, [otlp(inner, outer, later)])
    assert [row["metadata"]["log"]["spans"] for row in stored(buffer)] == [["out", "in"], ["again"]]


# --- scores ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scores_become_feedback_on_the_row_that_holds_the_answer(buffer: Buffer, tmp_path: Path) -> None:
    about = {"name": "reward", "data_type": "NUMERIC", "source": "ANNOTATION", "trace_id": "t1"}
    rows = [
        observation("s1", FIRST[0], CALLING, 1),
        observation("s2", SECOND[0], ANSWER, 2),
        observation("alone", [ASKED], "5", 3, trace_id="t2"),
        {**about, "id": "1", "value": 0.5, "observation_id": "s1", "timestamp": "2026-01-02 00:00:00.000000"},
        {**about, "id": "2", "value": 1, "trace_id": "t2", "comment": "good"},
        {**about, "id": "3", "value": 0, "data_type": "CATEGORICAL", "string_value": "bad", "name": "kind"},
        {**about, "id": "4", "value": 1, "trace_id": "t7"},
        {**about, "id": "5", "value": "high"},
    ]
    report = imported(buffer, tmp_path, rows)
    assert (report.rows, report.stored, report.quarantined, report.new["feedback"]) == (4, 2, 2, 3)
    ids = {row["metadata"]["log"]["spans"][0]: row["experience_id"] for row in stored(buffer)}
    found = buffer.read("feedback").to_pylist()
    assert {(f["experience_id"], f["key"], f["value"], f["text"]) for f in found} == {
        (ids["s1"], "reward", 0.5, None),
        (ids["alone"], "reward", 1.0, "good"),
        (ids["s1"], "kind", None, "bad"),
    }  # fmt: skip
    assert {f["author"] for f in found} == {"langfuse:ANNOTATION"}
    [dated] = [f for f in found if f["value"] == 0.5]
    assert str(dated["created_at"]).startswith("2026-01-02 00:00:00")
    problems = "\n".join(quarantined(buffer))
    assert (
        "score 'reward' is about trace t7, of which no answered call of a model is in the source" in problems
    )
    assert "score 5: its value is 'high'; a number is needed" in problems
    assert imported(buffer, tmp_path, rows).new["feedback"] == 0


@pytest.mark.slow
def test_annotations_and_evaluations_in_spans_become_feedback(buffer: Buffer, tmp_path: Path) -> None:
    marked = openinference([ASKED], ANSWER)
    marked |= {"annotations.0.annotation.name": "helpful", "annotations.0.annotation.score": 0.75}
    marked |= {"annotations.0.annotation.annotator_kind": "HUMAN", "annotations.0.annotation.label": "yes"}
    result = {"gen_ai.evaluation.name": "grounded", "gen_ai.evaluation.score.value": 1.0}
    event = {"name": "gen_ai.evaluation.result", "timeUnixNano": "1767225600000000000"}
    whole = span("a", marked, 1, events=[{**event, "attributes": attributes(result)}], parentSpanId="root")
    root = span(
        "root", {"trace.annotations.0.annotation.name": "done", "trace.annotations.0.annotation.score": 1}
    )
    imported(buffer, tmp_path, [otlp(whole, root)])
    found = {f["key"]: (f["value"], f["text"], f["author"]) for f in buffer.read("feedback").to_pylist()}
    assert found == {
        "helpful": (0.75, "yes", "openinference:HUMAN"),
        "grounded": (1.0, None, "gen_ai"),
        "done": (1.0, None, "openinference"),
    }


@pytest.mark.slow
def test_annotations_of_phoenix_lie_beside_its_spans(buffer: Buffer, tmp_path: Path) -> None:
    note = {
        "id": "n",
        "name": "correct",
        "annotator_kind": "LLM",
        "result": {"score": 0, "explanation": "no"},
    }
    rows = [
        phoenix("s1", openinference([ASKED], ANSWER), 1),
        phoenix("root", {"openinference.span.kind": "AGENT"}, parent_id=None),
        phoenix("tool", {"openinference.span.kind": "TOOL"}),
        {**note, "span_id": "s1"},
        {**note, "span_id": "root", "name": "solved", "result": {"score": 1}},
        {**note, "span_id": "tool", "name": "relevant"},
    ]
    report = imported(buffer, tmp_path, rows)
    assert report.new["feedback"] == 2
    found = {(f["key"], f["value"], f["text"]) for f in buffer.read("feedback").to_pylist()}
    assert found == {("correct", 0.0, "no"), ("solved", 1.0, None)}
    assert "score 'relevant' is about span tool" in quarantined(buffer)[0]


# --- what cannot be read ---------------------------------------------------------------------------

GOOD = openinference([ASKED], ANSWER)


def _without(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key: item for key, item in found.items() if not key.startswith(prefix)}


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "failed": (
        lambda: otlp(span("b", GOOD, status={"code": 2, "message": "429 slow down"})),
        "span b of trace t1: the call failed: 429 slow down",
    ),
    "content not recorded": (
        lambda: otlp(span("b", _without(gen_ai([SYSTEM, ASKED], ANSWER), "gen_ai.input"))),
        "the span has no messages: its content was not recorded",
    ),
    "no answer": (
        lambda: otlp(span("b", _without(GOOD, "llm.output_messages"))),
        "the call has no answer: it failed, was cut off, or its content was not recorded",
    ),
    "cut off": (
        lambda: otlp(
            span("b", {**gen_ai([SYSTEM, ASKED], ANSWER), "gen_ai.output.messages": '[{"role": "as'})
        ),
        "attribute 'gen_ai.output.messages' is text that is not JSON",
    ),
    "redacted": (
        lambda: otlp(span("b", {**GOOD, "llm.input_messages.0.message.content": "__REDACTED__"})),
        "the log holds no content: it was redacted where it was written",
    ),
    "an unknown role": (
        lambda: otlp(span("b", {**GOOD, "llm.input_messages.0.message.role": "narrator"})),
        "the call's messages[0] has role 'narrator'",
    ),
    "an unknown value": (
        lambda: otlp({**span("b", GOOD), "attributes": [{"key": "x", "value": {"dateValue": 1}}]}),
        "an attribute has a value of kind 'dateValue'",
    ),
    "no ids": (lambda: otlp({"attributes": []}), "span ? of trace ?: a span has no traceId and spanId"),
    "not of OTLP": (lambda: {"resourceSpans": "x"}, "there is no list 'resourceSpans'"),
    "an error of Langfuse": (
        lambda: observation("b", [ASKED], None, level="ERROR", status_message="timed out"),
        "observation b: the call failed: timed out",
    ),
    "no input in Langfuse": (
        lambda: {**observation("b", [ASKED], "x"), "input": None},
        "observation b: the observation has no input: its content was not recorded",
    ),
    "a cost that is no number": (
        lambda: observation("b", [ASKED], ANSWER, total_cost="n/a"),
        "observation b: 'cost_usd' of the call is 'n/a'; a number is needed",
    ),
    "a time in milliseconds": (
        lambda: observation("b", [ASKED], ANSWER, start_time=1.7e12),
        "observation b: '1700000000000.0' is no time in seconds and no ISO text",
    ),
    "an id that is no text": (
        lambda: observation("\ud800", [ASKED], ANSWER),
        "an id in it has half of a surrogate pair",
    ),
    "too deep": (
        lambda: otlp(span("b", {**GOOD, ".".join("a" * 5000): 1})),
        "it is nested too deeply",
    ),
    "an error of Phoenix": (
        lambda: phoenix("b", GOOD, status_code="ERROR", status_message="boom"),
        "span b of trace t1: the call failed: boom",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_read_is_set_aside_with_its_reason(what: str, buffer: Buffer, tmp_path: Path) -> None:
    """And costs no other call of its row, trace or file."""
    make, reason = BAD[what]
    row = make()
    if "resourceSpans" in row:
        name, good = "otlp", otlp(span("good", GOOD, 5))
    elif "context" in row:
        name, good = "phoenix", phoenix("good", GOOD, 5)
    else:
        name, good = "langfuse", observation("good", [ASKED], ANSWER, 5)
    report = imported(buffer, tmp_path, [row, good], format=name)
    assert (report.stored, report.quarantined) == (1, 1), report
    assert reason in quarantined(buffer)[0]
    assert "log.jsonl:1: " in quarantined(buffer)[0]
    assert _trained(stored(buffer)[0]) == ["It is 5."]


def test_a_log_without_calls_says_so(buffer: Buffer, tmp_path: Path) -> None:
    report = imported(buffer, tmp_path, [otlp(span("a", {"http.method": "GET"}))])
    assert (report.rows, report.quarantined) == (1, 1)
    assert "no span in it is a call of a model that was answered" in quarantined(buffer)[0]


@pytest.mark.slow
def test_calls_before_the_end_of_a_broken_file_are_stored(buffer: Buffer, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text("[" + json.dumps(otlp(span("a", GOOD))) + ",\n" + json.dumps(otlp(span("b", GOOD)))[:50])
    with pytest.raises(RowError, match=r"log\.json:2: the JSON cannot be read on"):
        import_into(buffer, path)
    assert len(buffer) == 1


@pytest.mark.slow
def test_roles_and_images_of_other_libraries(buffer: Buffer, tmp_path: Path) -> None:
    picture = "data:image/png;base64,iVBORw0KGgo="
    asked = {
        "role": "user",
        "parts": [
            {"type": "text", "content": "What is it?"},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": picture.split(",")[1]},
        ],
    }
    found = gen_ai([SYSTEM, ASKED], ANSWER)
    found["gen_ai.input.messages"] = json.dumps([{"role": "human", "parts": asked["parts"]}])
    imported(buffer, tmp_path, [otlp(span("a", found))])
    [row] = stored(buffer)
    assert row["messages"][1]["role"] == "user"
    assert row["messages"][1]["content"][1]["image_url"]["url"] == f"payload:{row['payloads'][0]}"


@pytest.mark.slow
def test_results_of_several_tools_are_several_messages(buffer: Buffer, tmp_path: Path) -> None:
    results = [{"type": "tool_call_response", "id": f"c{n}", "response": {"sum": n}} for n in range(2)]
    found = gen_ai([SYSTEM, ASKED], ANSWER)
    found["gen_ai.input.messages"] = json.dumps(
        [
            {"role": "user", "parts": [{"type": "text", "content": "x"}]},
            {"role": "user", "parts": [*results, {"type": "text", "content": "go on"}]},
        ]
    )
    imported(buffer, tmp_path, [otlp(span("a", found))])
    assert stored(buffer)[0]["messages"][4] == {"role": "user", "content": "go on"}
    assert stored(buffer)[0]["messages"][2:4] == [
        {"role": "tool", "tool_call_id": f"c{n}", "content": json.dumps({"sum": n})} for n in range(2)
    ]
