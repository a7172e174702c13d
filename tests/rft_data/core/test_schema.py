import dataclasses
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from docs.pages.schema import page
from rft_data.core.codec import to_experiences, to_table, to_tasks
from rft_data.core.digests import TRAINED, UNDIGESTED, row_digests, trained_digests
from rft_data.core.rows import Experience, Task
from rft_data.core.schema import EXPERIENCES, TABLES, TASKS
from tests.rft_data.conftest import make_experience

floats = st.floats(-50, 0, width=32)


@st.composite
def experiences(draw: st.DrawFn) -> Experience:
    length = draw(st.integers(1, 6))
    known = draw(st.booleans())
    return make_experience(
        draw(st.integers(0, 9)),
        source="expert",
        token_ids=draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length))
        if known
        else None,
        action_mask=[1] * length if known else None,
        logprobs=draw(st.lists(floats, min_size=length, max_size=length)) if known else None,
        prompt_length=0,
        version_min=draw(st.none() | st.integers(0, 9)),
        version_spans=draw(st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=3)),
        completion_text=draw(st.text(st.characters(exclude_categories=("Cs",)))),
        reward=draw(st.none() | floats),
        payloads=draw(st.lists(st.text("ab", max_size=2), max_size=3).map(tuple)),
        tools=draw(st.none() | st.just([{"type": "function"}])),
        teacher_logprobs=[-1.0] * length if known and draw(st.booleans()) else None,
        reward_parts=draw(st.dictionaries(st.text("abc"), st.floats(allow_nan=False, allow_infinity=False))),
    )


def as_plain(row: Experience) -> dict:
    values = {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
    values["version_spans"] = [tuple(s) for s in values["version_spans"]]
    values["messages"] = [dict(m) for m in values["messages"]]
    return values


@pytest.mark.slow
@given(st.lists(experiences(), min_size=1, max_size=4))
def test_experiences_survive_the_table_and_keep_their_digest(rows: list[Experience]) -> None:
    table = to_table(rows, EXPERIENCES)
    back = to_experiences(table)
    assert [as_plain(row) for row in back] == [as_plain(row) for row in rows]
    assert row_digests(to_table(back, EXPERIENCES)) == row_digests(table)


@pytest.mark.slow
@given(st.integers(0, 5), st.integers(1, 3))
def test_digest_does_not_depend_on_where_the_row_stands(offset: int, chunks: int) -> None:
    rows = [make_experience(i, reward=float(i)) for i in range(8)]
    table = pa.concat_tables([to_table(rows, EXPERIENCES)] * chunks)
    assert row_digests(table.slice(offset, 2)) == row_digests(table)[offset : offset + 2]


@pytest.mark.parametrize("column", [f.name for f in EXPERIENCES if f.name not in UNDIGESTED])
def test_digest_changes_with_every_digested_column(column: str) -> None:
    table = to_table([make_experience(0)], EXPERIENCES)
    other = {
        "reward": 0.5,
        "token_ids": [5, 6, 7, 9],
        "action_mask": [0, 0, 0, 1],
        "logprobs": [0.0, 0.0, -0.25, -1.75],
        "version_spans": [{"version": 4, "start": 2, "end": 4}],
        "teacher_logprobs": [0.0, 0.0, -1.0, -2.0],
        "payloads": ["p"],
    }
    kind = EXPERIENCES.field(column).type
    value = other.get(column, 41 if pa.types.is_integer(kind) else "other")
    place = table.column_names.index(column)
    changed = table.set_column(place, EXPERIENCES.field(column), pa.array([value], kind))
    assert row_digests(changed) != row_digests(table)


def test_row_fields_and_schema_columns_are_the_same() -> None:
    assert {f.name for f in dataclasses.fields(Experience)} == set(EXPERIENCES.names) - {"seq", "digest"}
    assert {f.name for f in dataclasses.fields(Task)} | {"task_id", "created_at"} == set(TASKS.names)


def test_every_column_of_every_table_says_what_it_means() -> None:
    for schema, _ in TABLES.values():
        assert all(field.metadata[b"doc"] for field in schema)


def test_tasks_survive_the_table() -> None:
    task = Task("a", ({"role": "user", "content": "é ✓"},), None, "heldout", None, {"k": [1, None, "x"]})
    row = {name: getattr(task, name, None) for name in TASKS.names}
    assert to_tasks(to_table([row], TASKS)) == [task]


def test_json_column_refuses_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_table([make_experience(0, reward_parts={"x": float(np.nan)})], EXPERIENCES)


def test_schema_page_is_the_schema() -> None:
    stored = (Path(__file__).parents[3] / "docs" / "schema.md").read_text()
    assert stored == page(), "run: python -m docs.pages.schema > docs/schema.md"


def reference_digest(row: dict) -> str:
    """The definition of a digest, value by value, without Arrow's buffers."""
    halves = []
    for names in (TRAINED, [n for n in EXPERIENCES.names if n not in UNDIGESTED and n not in TRAINED]):
        data = b""
        for name in names:
            value, kind = row[name], EXPERIENCES.field(name).type
            if value is None:
                continue
            size = None
            if name == "version_spans":
                encoded = b"".join(struct.pack("<qqq", s["version"], s["start"], s["end"]) for s in value)
            elif name == "payloads":
                encoded = b"\xff".join(text.encode() for text in value)
                size = len(encoded) + (len(value) << 40)
            elif isinstance(value, str):
                encoded = value.encode()
            else:
                element = kind.value_type if isinstance(value, list) else kind
                encoded = np.asarray(value, element.to_pandas_dtype()).tobytes()
            tag = xxhash.xxh3_64_intdigest(name.encode())
            data += struct.pack("<QQ", tag, len(encoded) if size is None else size) + encoded
        halves.append(xxhash.xxh3_64_hexdigest(data))
    return "".join(halves)


@pytest.mark.slow
@given(st.lists(experiences(), min_size=1, max_size=4), st.integers(0, 2))
def test_digest_is_what_its_definition_says(rows: list[Experience], offset: int) -> None:
    table = to_table(rows, EXPERIENCES).slice(offset)
    assert row_digests(table) == [reference_digest(row) for row in table.to_pylist()]
    assert trained_digests(table) == [digest[:16] for digest in row_digests(table)]


def test_messages_and_tools_keep_the_order_of_their_keys() -> None:
    call = {"name": "find", "arguments": {"zip": 1, "age": 2}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    row = make_experience(0, messages=(message,), tools=[call], metadata={"b": 1, "a": 2})
    [back] = to_experiences(to_table([row], EXPERIENCES))
    assert str(back.messages[0]) == str(message)
    assert str(back.tools[0]) == str(call)
    assert list(back.metadata) == ["a", "b"]
