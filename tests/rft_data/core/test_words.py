"""The sets of words: they are what the schema's columns say, and they are stored as plain text."""

import dataclasses
import json
import pickle
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import TypeAdapter

from rft_data.core import schema, words
from rft_data.core.canonical import canonical_json
from rft_data.core.codec import from_table, to_experiences, to_preferences, to_table, to_tasks
from rft_data.core.filters import Compare, In, to_sql
from rft_data.core.rows import Experience, Message, PreferencePair, Task
from rft_data.core.words import (
    FeedbackKey,
    FinishReason,
    GroupOutcome,
    LeaseEvent,
    MetricRole,
    PairSource,
    RowSource,
    Split,
    Verdict,
)

ENUMS = [kind for kind in vars(words).values() if isinstance(kind, type) and issubclass(kind, StrEnum)]
ENUMS.remove(StrEnum)
PROMPT: tuple[Message, ...] = ({"role": "user", "content": "1 + 1?"},)


def listed(doc: str) -> set[str]:
    """The words a column's doc lists: `a, b (why) or c; further text`."""
    head = doc.partition(";")[0].replace(" or ", ", ").replace(", ,", ",")
    return {part.partition("(")[0].strip() for part in head.split(",") if part.strip()}


@pytest.mark.parametrize(
    ("table", "column", "stored"),
    [
        (schema.TASKS, "split", set(Split)),
        (schema.EXPERIENCES, "source", set(RowSource)),
        (schema.EXPERIENCES, "finish_reason", {*FinishReason, "empty when not sampled"}),
        (schema.PREFERENCES, "source", set(PairSource)),
        (schema.GROUPS, "outcome", set(GroupOutcome) - {GroupOutcome.AWAITING}),
        (schema.ANNOTATIONS, "verdict", set(Verdict) - {Verdict.MASKED}),
        (schema.LEASES, "kind", set(LeaseEvent)),
        (schema.METRICS, "role", set(MetricRole)),
    ],
)
def test_schema_lists_the_words_of_a_column(table: pa.Schema, column: str, stored: set[str]) -> None:
    assert listed(table.field(column).metadata[b"doc"].decode()) == stored


def test_schema_lists_the_feedback_keys_a_person_may_give() -> None:
    named = listed(schema.FEEDBACK.field("key").metadata[b"doc"].decode())

    assert named == {FeedbackKey.REWARD, FeedbackKey.SCORE, FeedbackKey.EDIT, "a name of your own"}


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_a_word_is_its_stored_text_everywhere(kind: type[StrEnum]) -> None:
    for word in kind:
        text = word.value
        assert (str(word), f"{word}", f"{word:>12}", "%s" % word) == (text, text, f"{text:>12}", text)  # noqa: UP031
        assert {word: 1} == {text: 1}
        assert json.dumps({word: word}) == json.dumps({text: text})
        assert canonical_json([word]) == canonical_json([text])
        assert TypeAdapter(kind).dump_json(word) == json.dumps(text).encode()
        assert TypeAdapter(kind).validate_json(json.dumps(text)) is word
        assert pickle.loads(pickle.dumps(word)) is word  # noqa: S301
        assert pa.array([word]).equals(pa.array([text]))
        assert pc.equal(pa.array([text]), word).to_pylist() == [True]


def test_a_filter_with_words_is_the_filter_with_their_texts() -> None:
    one = In("source", (RowSource.EVAL, RowSource.PROBE))

    assert to_sql(one, schema.EXPERIENCES) == to_sql(In("source", ("eval", "probe")), schema.EXPERIENCES)
    assert to_sql(Compare("outcome", "eq", GroupOutcome.ARRIVED), schema.GROUPS) == "(outcome = 'arrived')"


def experience(source: RowSource) -> Experience:
    return Experience("e", source, "run", "sums", "t", "g", messages=PROMPT)


def test_decoded_rows_hold_members() -> None:
    rows = to_experiences(to_table([experience(source) for source in RowSource], schema.INCOMING))
    task = Task("sums", PROMPT, split=Split.HELDOUT)
    mapping = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    stored = to_table([{**mapping, "task_id": task.task_id, "created_at": rows[0].created_at}], schema.TASKS)
    pair = PreferencePair(PairSource.HUMAN, "sums", "t", PROMPT, PROMPT)

    assert [row.source for row in rows] == list(RowSource)
    assert all(type(row.source) is RowSource for row in rows)
    assert type(to_tasks(stored)[0].split) is Split
    assert type(to_preferences(to_table([pair], schema.PREFERENCES))[0].source) is PairSource


def test_a_stored_text_that_is_no_word_is_read_as_it_is() -> None:
    table = to_table([experience(RowSource.EVAL)], schema.INCOMING)
    place = table.column_names.index("source")
    odd = table.set_column(place, table.schema.field("source"), pa.array(["of a later release"]))

    assert to_experiences(odd)[0].source == from_table(odd, schema.EXPERIENCES)[0]["source"]
