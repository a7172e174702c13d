"""Calls of one conversation as experiences: a call that continues an earlier one lengthens its row.

Every answer of the log is in the completion of exactly one row. A call whose history was changed (compacted,
cut, a branch) begins another row, whose prompt is all that was sent; so does every choice of a call with
several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rft_data.core.canonical import content_id
from rft_data.core.chat import message_text, objects
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Experience, Feedback
from rft_data.exchange.formats.records import Origin, Record, Row, imported_experience
from rft_data.exchange.formats.traces.attributes import seconds

_Name = tuple[str, str]
"""(trace, span id) of a call."""
_SUMMED = ("input_tokens", "output_tokens", "latency_s", "cost_usd")


@dataclass(slots=True)
class _Path:
    """A row in the making."""

    messages: list[JsonObject]
    prompt: int
    calls: list[JsonObject]
    """The calls whose answers it holds."""
    finish_reason: str
    member: int = 0
    choices: int = 1
    """Choices of its only call; a row with several is not lengthened."""
    names: list[_Name] = field(default_factory=list)
    """Names of its calls, those that were logged twice among them."""


def read_conversation(row: Row, origin: Origin) -> Sequence[Record]:
    """The experiences of a conversation, and the feedback on them."""
    calls = objects(row.get("calls"))
    if not calls:
        raise RowError("there are no calls")
    paths = _paths(_distinct(calls))
    made = [(path, _experience(path, origin)) for path in paths]
    about = {name: experience for path, experience in made for name in path.names}
    return [
        *(experience for _, experience in made),
        *(_feedback(score, about) for score in objects(row.get("scores")) or ()),
    ]


def _distinct(calls: Sequence[JsonObject]) -> list[tuple[JsonObject, list[_Name]]]:
    """(call, its names). A call logged by two libraries, one around the other, is one call."""
    kept: list[tuple[JsonObject, list[_Name]]] = []
    by_content: dict[str, tuple[JsonObject, list[_Name]]] = {}
    for call in sorted(calls, key=_begins_and_holds):
        content = content_id(
            [_digest(call["messages"]), _digest([_said(one) for one in _list(call["answers"])])]
        )
        outer = by_content.get(content)
        if outer is not None and _within(_object(call["span"]), _object(outer[0]["span"])):
            outer[1].append(_name(call))
            continue
        one = (call, [_name(call)])
        by_content[content] = one
        kept.append(one)
    return kept


def _name(call: JsonObject) -> _Name:
    span = _object(call["span"])
    return str(span["trace"]), str(span["span_id"])


def _begins_and_holds(call: JsonObject) -> tuple[float, float]:
    """An order in which a call comes before those inside it."""
    span = _object(call["span"])
    return float(str(span["started_s"])), -float(str(span["ended_s"]))


def _within(inner: JsonObject, outer: JsonObject) -> bool:
    start, end = float(str(outer["started_s"])), float(str(outer["ended_s"]))
    return 0 < start <= float(str(inner["started_s"])) and float(str(inner["ended_s"])) <= end


def _paths(calls: Sequence[tuple[JsonObject, list[_Name]]]) -> list[_Path]:
    paths: list[_Path] = []
    ends: dict[str, _Path] = {}
    for call, names in calls:
        sent, answers = [_object(item) for item in _list(call["messages"])], _list(call["answers"])
        digests = histories(sent)
        for member, answer in enumerate(answers):
            said, reason = _said(answer), str(_object(answer).get("finish_reason") or "")
            end = digest_after(digests[-1], said)
            known = next((at for at in reversed(digests) if at in ends), None) if len(answers) == 1 else None
            if known is not None:
                path = ends.pop(known)
                path.messages += [*sent[digests.index(known) + 1 :], said]
                path.calls.append(call)
                path.names += names
                path.finish_reason = reason
            else:
                path = _Path([*sent, said], len(sent), [call], reason, member, len(answers), list(names))
                paths.append(path)
            if path.choices == 1:
                ends[end] = path
    return paths


def histories(messages: Sequence[JsonObject]) -> list[str]:
    """For each message one name of all messages up to it."""
    made: list[str] = []
    for item in messages:
        made.append(digest_after(made[-1] if made else "", item))
    return made


def _digest(messages: Json) -> str:
    digests = histories([_object(item) for item in _list(messages)])
    return digests[-1] if digests else ""


def digest_after(before: str, item: JsonObject) -> str:
    """The name of messages that end with `item`, after those named `before`."""
    return content_id(before, _meaning(item))


def _meaning(item: JsonObject) -> Json:
    """The part of a message that stays when a program sends it back: no thinking, ids or spaces around it."""
    content = item["content"]
    others = (
        [part for part in _list(content) if _object(part).get("type") != "text"] if _is_list(content) else []
    )
    calls = [_called(call) for call in objects(item.get("tool_calls")) or ()]
    return [item["role"], message_text(item).strip(), others, calls]


def _called(call: JsonObject) -> Json:
    function = _object(call.get("function", call))
    return [function.get("name"), function.get("arguments")]


def _experience(path: _Path, origin: Origin) -> Experience:
    first, spans = path.calls[0], [_object(call["span"]) for call in path.calls]
    facts = [_object(call["facts"]) for call in path.calls]
    sums = {key: sum(float(str(one[key])) for one in facts if key in one) for key in _SUMMED}
    log: dict[str, Json] = {
        "traces": list(dict.fromkeys(str(span["trace"]) for span in spans)),
        "spans": [span_id for _, span_id in path.names],
        "calls": len(path.calls),
        "model": facts[-1].get("model"),
        "name": facts[-1].get("name"),
        "session": spans[0].get("session") or None,
        "started_s": spans[0].get("started_s") or None,
        **{key: value for key, value in sums.items() if any(key in one for one in facts)},
    }
    return imported_experience(
        origin,
        path.messages,
        path.prompt,
        group=[spans[0]["trace"], spans[0]["span_id"]] if path.choices > 1 else None,
        member=path.member,
        tools=objects(path.calls[-1]["tools"]),
        finish_reason=path.finish_reason,
        sampling=_object(first["sampling"]),
        metadata={"log": {key: value for key, value in log.items() if value is not None}},
    )


def _feedback(score: JsonObject, about: Mapping[_Name, Experience]) -> Feedback:
    value, when, words = score["value"], score.get("created_at"), score.get("text")
    trace, span_id = _list(score["call"])
    return Feedback(
        about[str(trace), str(span_id)].experience_id,
        str(score["author"]),
        str(score["name"]),
        None if value is None else float(str(value)),
        None if words is None else str(words),
        None if when is None else datetime.fromtimestamp(seconds(when), UTC),
    )


def _said(answer: Json) -> JsonObject:
    return _object(_object(answer)["message"])


def _is_list(value: Json) -> bool:
    return isinstance(value, list)


def _list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else []


def _object(value: Json) -> JsonObject:
    if not isinstance(value, Mapping):
        raise RowError(f"found {type(value).__name__}, wanted an object")
    return value
