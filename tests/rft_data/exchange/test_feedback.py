"""Feedback: folded as a plain loop does it, and read from files line by line."""

import json
import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.rows import Feedback
from rft_data.exchange.feedback import WITHDRAWN, Folded, feedback_about, fold, read_feedback, withdrawal
from tests.rft_data.conftest import make_experience

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("experience_id", pa.string()),
        ("author", pa.string()),
        ("value", pa.float64()),
        ("text", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)


def table(rows: list[tuple[str, str, float | None, str | None, int]]) -> pa.Table:
    """(experience, author, value, text, second) as `feedback_about` gives it."""
    names = SCHEMA.names
    stamped = [(*row[:4], START + timedelta(seconds=row[4])) for row in rows]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in stamped], schema=SCHEMA)


def reference(rows: list[tuple[str, str, float | None, str | None, int]], how: str) -> dict[str, float]:
    """The same by a loop over rows in time order."""
    said: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for place, (name, author, value, text, _) in enumerate(sorted(rows, key=lambda row: row[4])):
        if value is not None:
            said[name][author].append((place, value))
        elif text is not None and text.startswith(WITHDRAWN):
            said[name][author].clear()
    found = {}
    for name, authors in said.items():
        by_author = [values for values in authors.values() if values]
        if not by_author:
            continue
        if how == "last":
            found[name] = max(pair for values in by_author for pair in values)[1]
        elif how == "mean":
            found[name] = sum(values[-1][1] for values in by_author) / len(by_author)
        else:
            found[name] = math.fsum(value for values in by_author for _, value in values)
    return found


said_rows = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["ann", "bob"]),
        st.none() | st.floats(-4, 4),
        st.sampled_from([None, "fine", WITHDRAWN + " 1"]),
        st.integers(0, 5),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(rows=said_rows, how=st.sampled_from(["last", "mean", "sum"]))
@settings(max_examples=150)
def test_fold_equals_a_plain_loop(rows: list, how: str) -> None:
    found = fold(table(rows), how)
    wanted = reference(rows, how)
    assert dict(zip(found.ids.to_pylist(), found.values.tolist(), strict=True)) == pytest.approx(wanted)


def test_of_equal_times_the_one_stored_later_is_last() -> None:
    assert fold(table([("a", "x", 1.0, None, 0), ("a", "x", 2.0, None, 0)]), "last").values.tolist() == [2.0]


def test_nothing_said_is_nan() -> None:
    found = fold(table([("a", "x", 1.0, None, 0)]), "last").values_for(pa.chunked_array([["b", "a", "b"]]))
    assert math.isnan(found[0])
    assert found[1] == 1.0
    nothing = Folded(pa.array([], pa.string()), found[:0])
    assert [math.isnan(value) for value in nothing.values_for(pa.array(["a"]))] == [True]


@pytest.mark.slow
def test_only_the_key_and_the_rows_asked_for_are_read(buffer: Buffer) -> None:
    rows = [make_experience(n) for n in range(3)]
    buffer.append(rows)
    ids = [row.experience_id for row in rows]
    said = [Feedback(ids[0], "x", "reward", 1.0), Feedback(ids[1], "x", "score", 2.0)]
    buffer.add_feedback([*said, Feedback(ids[2], "x", "reward", 3.0)])
    assert feedback_about(buffer, "reward", ids[:2]).column("value").to_pylist() == [1.0]
    assert feedback_about(buffer, "reward", []).num_rows == 0


@pytest.mark.slow
def test_many_rows_are_found_as_few_are(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_experience(n) for n in range(6)]
    buffer.append(rows)
    ids = [row.experience_id for row in rows]
    said = [Feedback(name, "x", "reward", float(n)) for n, name in enumerate(ids)]
    buffer.add_feedback([*said, Feedback(ids[0], "x", "score", 9.0)])
    few = feedback_about(buffer, "reward", ids[1:5])
    monkeypatch.setattr("rft_data.exchange.feedback._FEW", 2)
    assert feedback_about(buffer, "reward", ids[1:5]).equals(few)
    assert few.column("value").to_pylist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.slow
def test_a_withdrawal_is_new_however_often_it_is_said(buffer: Buffer) -> None:
    row = make_experience(0)
    buffer.append([row])
    said = Feedback(row.experience_id, "x", "score", 3.0)
    assert buffer.add_feedback([said]) == 1
    assert buffer.add_feedback([withdrawal(said, 1)]) == 1
    assert buffer.add_feedback([withdrawal(said, 2)]) == 1
    assert len(fold(feedback_about(buffer, "score", [row.experience_id]), "last").ids) == 0


# --- files -----------------------------------------------------------------------------------------------


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_file_of_feedback_is_read(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "f.jsonl",
        {"experience_id": "a", "key": "reward", "value": 1, "created_at": "2026-02-03T04:05:06Z"},
        {"experience_id": "b", "key": "edit", "text": "better: 4", "author": "ann", "value": None},
    )
    first, second = read_feedback(path, "me")
    assert (first.value, first.author) == (1.0, "me")
    assert first.created_at == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert (second.value, second.text, second.author) == (None, "better: 4", "ann")
    assert second.created_at is None, "nobody told when"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "2: not JSON"),
        ({"key": "reward", "value": 1}, "'experience_id' is None; a text is needed"),
        ({"experience_id": "a", "key": "", "value": 1}, "'key' is ''"),
        ({"experience_id": "a", "key": "reward"}, "one of them is needed"),
        ({"experience_id": "a", "key": "reward", "value": True}, "a number is needed"),
        ({"experience_id": "a", "key": "reward", "value": "1"}, "a number is needed"),
        ('{"experience_id": "a", "key": "reward", "value": NaN}', "NaN is not JSON"),
        ({"experience_id": "a", "key": "reward", "value": 1, "who": "x"}, "unknown field 'who'"),
        ({"experience_id": "a", "key": "reward", "value": 1, "created_at": "today"}, "is not a time"),
        ({"experience_id": "a", "key": "edit", "text": 5}, "'text' is 5"),
        (f'{{"experience_id": "a", "key": "reward", "value": 1{"0" * 400}}}', "a finite number is needed"),
        ('{"experience_id": "\\ud800", "key": "reward", "value": 1}', "'experience_id' is '\\ud800', which"),
        ('{"experience_id": "a", "key": "edit", "text": "ok\\udfff"}', "not Unicode at character 3"),
        (
            {"experience_id": "a", "key": "reward", "value": 1, "created_at": "0001-01-01T00:00:00+14:00"},
            "is not a time",
        ),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_read(tmp_path: Path, line: object, message: str) -> None:
    good = {"experience_id": "a", "key": "reward", "value": 1}
    with pytest.raises(RowError, match="nothing is stored") as caught:
        read_feedback(lines(tmp_path / "f.jsonl", good, line), "me")
    assert message in str(caught.value)
    assert "f.jsonl:2" in str(caught.value)


def test_a_line_without_author_is_refused_when_none_is_given(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="'author' is None"):
        read_feedback(lines(tmp_path / "f.jsonl", {"experience_id": "a", "key": "reward", "value": 1}))


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="and 5 more"):
        read_feedback(lines(tmp_path / "f.jsonl", *(["5"] * 25)), "me")


def test_a_file_that_stops_stores_nothing_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('[{"experience_id": "a", "key": "reward", "value": 1},\n {"experience_id"')
    with pytest.raises(RowError, match=r"f\.json:2: .* cannot be read on") as caught:
        read_feedback(path, "me")
    assert "Nothing is stored" in str(caught.value)
    assert "are stored" not in str(caught.value)


@pytest.mark.slow
def test_a_correction_back_to_an_earlier_value_counts_and_a_repeated_import_does_not(
    buffer: Buffer, tmp_path: Path
) -> None:
    buffer.append([make_experience(0)])
    name = make_experience(0).experience_id
    rows = [
        {
            "experience_id": name,
            "key": "score",
            "value": value,
            "created_at": f"2026-01-0{day}T01:00:00+01:00",
        }
        for day, value in ((1, 3), (2, 5), (3, 3))
    ]
    said = read_feedback(lines(tmp_path / "f.jsonl", *rows), "me")
    assert buffer.add_feedback(said) == 3
    assert fold(feedback_about(buffer, "score", [name]), "last").values.tolist() == [3.0]
    assert buffer.add_feedback(read_feedback(tmp_path / "f.jsonl", "me")) == 0
    undated = [{key: row[key] for key in ("experience_id", "key", "value")} for row in rows]
    assert buffer.add_feedback(read_feedback(lines(tmp_path / "g.jsonl", *undated), "me")) == 0


@pytest.mark.slow
def test_undated_feedback_is_stored_once_also_after_it_went_to_another_buffer_and_back(
    tmp_path: Path,
) -> None:
    row = make_experience(0)
    undated = Feedback(row.experience_id, "x", "score", 3)
    columns = ["experience_id", "author", "key", "value", "text", "created_at"]
    with Buffer(tmp_path / "one") as one, Buffer(tmp_path / "other") as other:
        for store in (one, other):
            store.append([row])
        assert one.add_feedback([undated, undated]) == 1
        [stored] = one.read("feedback", columns).to_pylist()
        assert other.add_feedback([Feedback(**stored)]) == 1
        assert other.add_feedback([undated]) == 0
        assert one.add_feedback([Feedback(**stored)]) == 0
    for name in ("one", "other"):
        with Buffer(tmp_path / name) as store:  # what is known is read from the table
            assert store.add_feedback([undated, Feedback(**stored)]) == 0
