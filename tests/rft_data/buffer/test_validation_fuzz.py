"""Whatever is appended is stored, quarantined with a reason, or refused with a RowError.

The judge is `validation_reference.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.buffer import column_checks as checks
from rft_data.core.codec import to_table
from rft_data.core.errors import RowError
from rft_data.core.rows import Experience
from rft_data.core.schema import INCOMING, is_json
from tests.rft_data.buffer.validation_reference import LIMIT, faults_of, plain
from tests.rft_data.conftest import make_experience

ROWS = 4
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def judge(buffer: Buffer, table: pa.Table, *, spare: bool = False) -> None:
    """Append a table; every row the reference calls good is stored, every other one is set aside.

    `spare`: leave out what is known to go wrong.
    """
    before = len(buffer)
    try:
        conforming = pa.Table.from_arrays(
            [table.column(f.name).cast(f.type) for f in INCOMING], schema=INCOMING
        )
    except (KeyError, pa.ArrowException):
        with pytest.raises(RowError, match="the table is not a batch of experiences"):
            buffer.append(table, deadline_s=20)
        assert len(buffer) == before
        return
    rows = plain(conforming)
    expected = [faults_of(row) for row in rows]
    quarantined = buffer.counts()["quarantine"]
    done = buffer.append(table, deadline_s=20)
    for seq, wrong, row in zip(done.seqs, expected, rows, strict=True):
        assert (seq is None) == bool(wrong), f"{wrong or 'a good row'}: {row}"
    stored = [row for row, wrong in zip(rows, expected, strict=True) if not wrong]
    kept = buffer.take([seq for seq in done.seqs if seq is not None])
    assert same(plain(kept.select(INCOMING.names)), stored)
    assert done.quarantined == len(rows) - len(stored)
    new = buffer.read("quarantine").to_pylist()[quarantined:]
    assert len(new) == done.quarantined
    assert all(row["reason"] for row in new)


def same(found: list[dict[str, Any]], brought: list[dict[str, Any]]) -> bool:
    names = [name for name in INCOMING.names if name != "created_at"]
    return [[row[n] for n in names] for row in found] == [[row[n] for n in names] for row in brought]


# --- tables ----------------------------------------------------------------------------------------


def raw_texts(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """A string array whose bytes nobody checked."""
    width = np.int64 if pa.types.is_large_string(kind) else np.int32
    ends = np.cumsum([0, *(len(value or b"") for value in values)]).astype(width)
    valid = pa.array([value is not None for value in values])
    bits = valid.cast(pa.uint8()).to_numpy()
    mask = pa.py_buffer(np.packbits(bits, bitorder="little").tobytes())
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(ends), data])


TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=6),
    st.text(max_size=6).map(str.encode),
    st.sampled_from([b"rollout", b"expert", b"", b"\xff", b"\xed\xa0\x80", b"x" * LIMIT, b"x" * (LIMIT + 1)]),
)
JSONS = st.sampled_from(
    [
        *(b"{}", b"[]", b"null", b'{"a":1}', b'{"a":NaN}', b"", b"{", b'{"a":-Infinity}', b"\xff", b"[1,]"),
        *(
            b'"\\ud800"',
            b'{"a":"\\ud83d\\ude00"}',
            b"9" * 400,
            b"[" * 150 + b"]" * 150,
            b"[" * 1400 + b"]" * 1400,
            b'"\xc3\xa9"',
            b"'a'",
        ),
    ]
)
NUMBERS = st.one_of(st.none(), st.integers(-3, 9), st.sampled_from([2**31, -(2**63), 2**63 - 1]))
FLOATS = st.one_of(st.none(), st.floats(width=32), st.sampled_from([1e300, 0.5, 1.0]))


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.lists(items, max_size=6), st.lists(items, min_size=4, max_size=4))


def small(low: int, high: int) -> st.SearchStrategy[Any]:
    return st.one_of(st.integers(low, high), st.integers(0, 1), st.none())


SPAN = st.fixed_dictionaries({name: small(-1, 5) for name in ("version", "start", "end")})


def column(field: pa.Field) -> st.SearchStrategy[pa.Array]:
    """Garbage for one column, right in type or not."""
    kind = field.type
    if pa.types.is_string(kind):
        values = st.lists(JSONS if is_json(field) else TEXTS, min_size=ROWS, max_size=ROWS)
        kinds = st.sampled_from([pa.string(), pa.large_string()])
        return st.one_of(st.builds(raw_texts, values, kinds), OTHER_TYPES)
    if pa.types.is_list(kind):
        item = {
            pa.int32(): small(-2, 9),
            pa.int8(): small(-1, 2),
            pa.float32(): FLOATS,
            pa.string(): st.one_of(st.none(), st.text(max_size=3)),
        }.get(kind.value_type, SPAN)
        values = st.lists(lists(item), min_size=ROWS, max_size=ROWS)
        kinds = st.sampled_from([kind, pa.large_list(kind.value_type)])
        return st.one_of(st.builds(pa.array, values, kinds), st.builds(covered_nulls, values, st.just(kind)))
    values = st.lists(FLOATS if pa.types.is_floating(kind) else NUMBERS, min_size=ROWS, max_size=ROWS)
    kinds = st.sampled_from([pa.float64()] if pa.types.is_floating(kind) else [pa.int64()])
    return st.one_of(st.builds(pa.array, values, kinds), OTHER_TYPES)


def covered_nulls(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A list array whose null entries still have elements beneath them."""
    nulls = [value is None for value in values]
    beneath = next((value for value in values if value), [])
    shown = pa.array([beneath if value is None else value for value in values], kind)
    return pa.ListArray.from_arrays(shown.offsets, shown.values, type=kind, mask=pa.array(nulls))


OTHER_TYPES = st.sampled_from(
    [
        pa.nulls(ROWS),
        pa.array(["rollout"] * ROWS).dictionary_encode(),
        pa.array(["rollout", "expert", None, "{}"], pa.string_view()),
        pa.array([b"\xff"] * ROWS, pa.binary()),
        pa.array([1, 2, None, 4], pa.uint8()),
        pa.array([0.5] * ROWS, pa.float16()),
        pa.array([True, False, None, True]),
        pa.array([[1]] * ROWS),
        pa.array([{"a": 1}] * ROWS),
        pa.array([2**63] * ROWS, pa.uint64()),
    ]
)


def good_table(start: int) -> pa.Table:
    return to_table([make_experience(start + i) for i in range(ROWS)], INCOMING)


def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), pa.field(name, values.type), values)


def cut(table: pa.Table, how: str) -> pa.Table:
    """The same rows, laid out otherwise."""
    if how == "sliced":
        return pa.concat_tables([table, table]).combine_chunks().slice(1, ROWS)
    if how == "chunked":
        return pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1)])
    return table.slice(2, 0) if how == "empty" else table


class Target:
    """One buffer for all examples of a test; ids are never used twice."""

    def __init__(self, folder: Path) -> None:
        self.buffer = Buffer(folder / "buffer")
        self.used = 0

    def numbers(self) -> int:
        self.used += ROWS
        return self.used - ROWS


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "MAX_TEXT_BYTES", LIMIT)
        opened = Target(tmp_path_factory.mktemp("target"))
        yield opened
        opened.buffer.close()


@pytest.mark.heavy
@FUZZ
@given(data=st.data(), how=st.sampled_from(["whole", "sliced", "chunked", "empty"]))
def test_any_table_is_stored_quarantined_or_refused(target: Target, data: st.DataObject, how: str) -> None:
    table = good_table(target.numbers())
    fields = data.draw(st.lists(st.sampled_from(list(INCOMING)), max_size=3, unique_by=lambda f: f.name))
    for field in fields:
        if field.name != "experience_id":  # conflicts have tests of their own
            table = replaced(table, field.name, data.draw(column(field), label=field.name))
    judge(target.buffer, cut(table, how), spare=True)


@pytest.mark.slow
@FUZZ
@given(
    missing=st.sets(st.sampled_from(INCOMING.names), max_size=3),
    unknown=st.sets(st.sampled_from(["seq", "digest", "Reward", "x"]), max_size=2),
    wrong=st.sets(st.sampled_from(["reward", "token_ids", "member"]), max_size=2),
    order=st.randoms(use_true_random=False),
)
def test_a_table_of_other_columns_is_refused_with_all_of_them(
    target: Target, missing: set[str], unknown: set[str], wrong: set[str], order: Any
) -> None:
    table = good_table(target.numbers())
    for name in wrong:
        table = replaced(table, name, pa.array(["no"] * ROWS))
    for name in unknown:
        table = table.append_column(name, pa.array([1] * ROWS))
    names = [name for name in table.column_names if name not in missing]
    order.shuffle(names)
    table = table.select(names)
    before = len(target.buffer)
    if not missing | unknown | wrong:
        assert target.buffer.append(table).stored == ROWS
        return
    with pytest.raises(RowError) as caught:
        target.buffer.append(table)
    for name in missing:
        assert f"column '{name}' is missing" in str(caught.value)
    for name in unknown:
        assert f"column '{name}' is not known" in str(caught.value)
    for name in wrong - missing:
        assert f"column '{name}' is string, not" in str(caught.value)
    assert len(target.buffer) == before


# --- experiences -----------------------------------------------------------------------------------

GARBAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["\ud800", b"\xff", {"a": {1, 2}}, {1: 2, "a": 3}, object(), 10**400, [[1]], ((1, 2),)]),
    st.lists(st.one_of(st.integers(), st.floats(), st.none(), st.text(max_size=2)), max_size=5),
    st.dictionaries(st.text(max_size=2), st.one_of(st.floats(), st.text(max_size=2)), max_size=2),
)
FIELDS = sorted(set(INCOMING.names) - {"experience_id"})


@pytest.mark.heavy
@FUZZ
@given(data=st.data(), bad=st.sets(st.integers(0, ROWS - 1), max_size=2))
def test_experiences_with_garbage_in_them_cost_no_other_row(
    target: Target, data: st.DataObject, bad: set[int]
) -> None:
    rows = [make_experience(target.numbers() + i) for i in range(ROWS)]
    for place in sorted(bad):
        names = data.draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=2, unique=True))
        changes = {name: data.draw(GARBAGE, label=name) for name in names}
        rows[place] = make_experience(target.used - ROWS + place, **changes)
    quarantined = target.buffer.counts()["quarantine"]
    done = target.buffer.append(rows, deadline_s=20)
    assert all(done.seqs[place] is not None for place in range(ROWS) if place not in bad)
    assert done.quarantined == sum(seq is None for seq in done.seqs)
    assert target.buffer.counts()["quarantine"] == quarantined + done.quarantined
    stored = target.buffer.take([seq for seq in done.seqs if seq is not None])
    for row in plain(stored.select(INCOMING.names)):
        assert not faults_of(row)


# --- what the fuzz has found -----------------------------------------------------------------------


def with_column(name: str, values: pa.Array) -> Callable[[int], pa.Table]:
    return lambda start: replaced(good_table(start), name, values)


FOUND = {
    "a source that is not UTF-8": with_column(
        "source", raw_texts([b"rollout", b"\xff", b"rollout", b"rollout"], pa.string())
    ),
    "a column twice": lambda start: good_table(start).append_column("reward", pa.array([1.0] * ROWS)),
    "a span without its version": with_column(
        "version_spans",
        pa.array([[{"version": None, "start": 2, "end": 4}]] * ROWS, INCOMING.field("version_spans").type),
    ),
    "a payload that is null": with_column("payloads", pa.array([["a", None]] * ROWS, pa.list_(pa.string()))),
    "a number that JSON cannot hold": with_column("metadata", pa.array(['{"a":1e999}'] * ROWS)),
    "a time that Python cannot hold": with_column("created_at", pa.array([2**63 - 1] * ROWS)),
    "a list view": with_column("token_ids", pa.array([[1, 2, 3, 4]] * ROWS, pa.list_view(pa.int32()))),
}


@pytest.mark.parametrize("name", FOUND)
def test_table_that_the_fuzz_found_is_judged_right(target: Target, name: str) -> None:
    judge(target.buffer, FOUND[name](target.numbers()))


def deep(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": np.array([2**40, 1, 2, 3])},
        {"token_ids": np.array([1.9, 2.0, 3.0, 4.0])},
        {"action_mask": np.array([0, 0, 256, 257])},
        {"metadata": deep(3_000)},
    ],
    ids=["wrapped id", "cut id", "wrapped mask", "deep"],
)
def test_experience_that_does_not_fit_is_set_aside_and_the_others_stored(
    target: Target, changes: dict[str, Any]
) -> None:
    start = target.numbers()
    rows: list[Experience] = [make_experience(start + i, **(changes if i == 1 else {})) for i in range(3)]
    done = target.buffer.append(rows)
    assert [seq is None for seq in done.seqs] == [False, True, False]
