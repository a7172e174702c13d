"""A filter's SQL agrees with its reference, no text from outside is run as SQL, errors come all at once."""

import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.core.errors import RecipeError
from rft_data.core.filters import (
    And,
    Compare,
    Contains,
    In,
    IsNull,
    Not,
    Or,
    bind,
    filter_columns,
    parse_filter,
    parse_text,
    read_text,
    to_json,
    to_sql,
    to_text,
)
from rft_data.core.schema import EXPERIENCES, TABLES
from tests.rft_data.core.filter_reference import matches

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("reward", pa.float32()),
        ("value", pa.float64()),
        ("version", pa.int64()),
        ("text", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
TEXTS = [
    "",
    "a",
    "it's",
    "''",
    "back\\slash\\",
    "per%cent_",
    "nul\x00l",
    "é😀\u202e",
    'x\n\t"`--;/*',
    "' OR 1=1 --",
]
FLOATS = [0.0, -0.0, 0.1, 0.5, -1.5, 1e-45, 3.4028234663852886e38, 1 / 3]
INTS = [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 2**53]
TIMES = [
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=timezone(timedelta(hours=2))),
]


def _rows() -> list[dict]:
    rng = np.random.default_rng(0)

    def pick(values: list) -> object:
        place = rng.integers(len(values) + 1)
        return None if place == len(values) else values[place]

    rows = [
        {
            "reward": pick(FLOATS),
            "value": pick([*FLOATS, 1e308, 5e-324]),
            "version": pick(INTS),
            "text": pick(TEXTS),
            "created_at": pick(TIMES),
            "tags": pick([["x"], []]),
        }
        for _ in range(120)
    ]
    rows += [{**rows[0], "reward": float("nan"), "value": float("nan")}]
    rows += [{**rows[0], "reward": float("inf"), "value": float("-inf")}]
    return [{"id": number, **row} for number, row in enumerate(rows)]


TABLE = pa.Table.from_pylist(_rows(), schema=SCHEMA)
ROWS = TABLE.to_pylist()
os.environ.setdefault("LANCE_LOG", "error")

_VALUES = {
    "reward": st.sampled_from(FLOATS) | st.floats(width=32, allow_nan=False, allow_infinity=False),
    "value": st.sampled_from(FLOATS) | st.floats(allow_nan=False, allow_infinity=False),
    "version": st.sampled_from(INTS) | st.integers(-(2**63), 2**63 - 1),
    "text": st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8"), max_size=8),
    "created_at": st.sampled_from(TIMES),
}


@st.composite
def leaves(draw: st.DrawFn):
    column = draw(st.sampled_from(sorted(_VALUES)))
    kind = draw(st.sampled_from(["compare", "in", "null", "contains"]))
    if kind == "null":
        return IsNull(draw(st.sampled_from([column, "tags"])))
    if kind == "contains":
        return Contains("text", draw(_VALUES["text"]), draw(st.booleans()))
    if kind == "in":
        return In(column, tuple(draw(st.lists(_VALUES[column], max_size=4))))
    return Compare(column, draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])), draw(_VALUES[column]))


def _grow(inner: st.SearchStrategy):
    several = st.lists(inner, max_size=3).map(tuple)
    return several.map(And) | several.map(Or) | inner.map(Not)


filters = st.recursive(leaves(), _grow, max_leaves=8)


@pytest.fixture(scope="module")
def lance_table(tmp_path_factory: pytest.TempPathFactory):
    import lancedb

    return lancedb.connect(str(tmp_path_factory.mktemp("db"))).create_table("rows", TABLE)


def _ids(kept: list[bool]) -> list[int]:
    return [row["id"] for row, keep in zip(ROWS, kept, strict=True) if keep]


@pytest.mark.slow
@settings(max_examples=300)
@given(filters)
def test_sql_through_lance_agrees_with_the_reference(lance_table, filter_):
    reference = _ids([matches(bind(filter_, SCHEMA), row) for row in ROWS])
    found = lance_table.search().where(to_sql(filter_, SCHEMA)).select(["id"]).to_arrow()
    assert sorted(found["id"].to_pylist()) == reference


ONE, OTHER = In("text", ("a", "")), In("text", ("it's", "''"))


@pytest.mark.parametrize(
    "filter_",
    [
        Not(And((ONE, OTHER))),
        Not(And((ONE, Not(ONE)))),
        Or((Not(ONE), Not(OTHER))),
        Not(Or((ONE, Not(OTHER)))),
        Not(And(())),
        Not(Or(())),
        Not(In("text", ())),
    ],
)
def test_lists_of_one_column_let_no_null_through(lance_table, filter_):
    found = lance_table.search().where(to_sql(filter_, SCHEMA)).select(["id"]).to_arrow()
    assert sorted(found["id"].to_pylist()) == _ids([matches(bind(filter_, SCHEMA), row) for row in ROWS])


@pytest.fixture(scope="module")
def duckdb_table():
    import duckdb

    with duckdb.connect() as db:
        db.execute("SET TimeZone='UTC'")
        db.register("t", TABLE)
        yield db


@pytest.mark.slow
@settings(max_examples=150)
@given(filters)
def test_sql_through_duckdb_agrees_with_the_reference(duckdb_table, filter_):
    rows = duckdb_table.execute(f"SELECT id FROM t WHERE {to_sql(filter_, SCHEMA)}").fetchall()  # noqa: S608
    assert sorted(row[0] for row in rows) == _ids([matches(bind(filter_, SCHEMA), row) for row in ROWS])


@pytest.mark.slow
@given(filters)
def test_json_form_reads_back_as_the_same_filter(filter_):
    bound = bind(filter_, SCHEMA)
    assert parse_filter(to_json(bound), SCHEMA) == bound


def test_null_never_matches_unless_asked_for():
    row = {"reward": None}
    assert not matches(Compare("reward", "lt", 1.0), row)
    assert not matches(Not(Compare("reward", "lt", 1.0)), row)
    assert not matches(Not(In("reward", (1.0,))), row)
    assert matches(IsNull("reward"), row)
    assert matches(Or((Compare("reward", "lt", 1.0), IsNull("reward"))), row)


def test_nan_satisfies_no_order_comparison(lance_table):
    for op in ("lt", "le", "gt", "ge", "eq"):
        sql = to_sql(Compare("reward", op, -1e30), SCHEMA)
        found = lance_table.search().where(sql).select(["id", "reward"]).to_arrow()
        assert not np.isnan(found["reward"].to_numpy()).any()


def test_float_literal_is_rounded_to_the_columns_width():
    table = pa.table({"reward": pa.array([0.1], pa.float32())})
    assert matches(bind(Compare("reward", "eq", 0.1), table.schema), table.to_pylist()[0])


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_stored_column_can_be_filtered_by_name(name, tmp_path: Path):
    import lancedb

    schema, _ = TABLES[name]
    table = lancedb.connect(str(tmp_path)).create_table(name, schema=schema)
    null = Or(tuple(IsNull(column) for column in schema.names))
    assert table.search().where(to_sql(null, schema)).to_arrow().num_rows == 0


INJECTIONS = [
    "x' OR 1=1 --",
    "x' OR '1'='1",
    "a'; DROP TABLE rows; --",
    "x') OR (1=1",
    "\\' OR 1=1 --",
    "x\\",
    "' UNION SELECT * FROM rows --",
    "length(repeat('x',300000000))>0",
    "${jndi:x}",
    "%",
    "_",
    "../../etc/passwd",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_injected_text_is_a_value_and_matches_nothing_else(lance_table, text):
    for column_filter in (Compare("text", "eq", text), In("text", (text,))):
        found = lance_table.search().where(to_sql(column_filter, SCHEMA)).to_arrow()
        assert found.num_rows == 0
    one = parse_filter({"text": text}, SCHEMA)
    assert matches(one, {"text": text})


@pytest.mark.parametrize("text", INJECTIONS)
def test_injected_column_name_is_refused(text):
    with pytest.raises(RecipeError, match="no column"):
        parse_filter({text: 1}, SCHEMA)
    with pytest.raises(RecipeError, match="no column"):
        to_sql(Compare(text, "eq", 1), SCHEMA)


@pytest.mark.parametrize(
    "text", ["1=1", "id = 1; DROP TABLE t", "id = (select 1)", "length(text) > 1", "id=1 --"]
)
def test_text_grammar_is_not_sql(text):
    with pytest.raises(RecipeError, match="the filter is not valid"):
        parse_text(text, SCHEMA)


def test_mapping_language():
    wanted = And((Compare("reward", "ge", 0.5), Compare("text", "eq", "a")))
    assert parse_filter({"reward": {"ge": 0.5}, "text": "a"}, SCHEMA) == wanted
    assert parse_filter([{"reward": {"ge": 0.5}}, {"text": "a"}], SCHEMA) == wanted
    assert parse_filter({"version": [1, 2]}, SCHEMA) == In("version", (1, 2))
    assert parse_filter({"version": None}, SCHEMA) == IsNull("version")
    assert parse_filter({"version": {"not_in": [1]}}, SCHEMA) == Not(In("version", (1,)))
    assert parse_filter({"text": {"starts_with": "a"}}, SCHEMA) == Contains("text", "a", prefix=True)
    assert parse_filter({}, SCHEMA) == And(())
    both = {"any": [{"not": {"reward": {"is_null": True}}}, {"reward": {"gt": 0, "lt": 1}}]}
    inside = And((Compare("reward", "gt", 0.0), Compare("reward", "lt", 1.0)))
    assert parse_filter(both, SCHEMA) == Or((Not(IsNull("reward")), inside))
    day = parse_filter({"created_at": {"ge": "2026-01-01"}}, SCHEMA)
    assert day == Compare("created_at", "ge", datetime(2026, 1, 1, tzinfo=UTC))


def test_text_language():
    made = parse_text(
        "reward >= 0.5 and text = 'it''s' or not (version in (1, -2) and text is not null)", SCHEMA
    )
    assert made == Or(
        (
            And((Compare("reward", "ge", 0.5), Compare("text", "eq", "it's"))),
            Not(And((In("version", (1, -2)), Not(IsNull("text"))))),
        )
    )
    assert parse_text("text starts with \"a\" AND text contains 'b'", SCHEMA) == And(
        (Contains("text", "a", prefix=True), Contains("text", "b"))
    )
    assert parse_text("version not in (1)", SCHEMA) == Not(In("version", (1,)))
    assert filter_columns(parse_text("reward < 1e-3 and version != 2", SCHEMA)) == {"reward", "version"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("reward >=", "wanted a number or a text in quotes, found the end"),
        ("reward > high", "write texts in quotes: 'high'"),
        ("rewrd > 1", "did you mean 'reward'"),
        ("text = 'a", "quote is not closed"),
        ("(reward > 1", r"wanted '\)'"),
        ("reward > 1 reward < 2", "wanted 'and', 'or' or the end"),
        ("", "wanted a column name, found the end"),
        ("text = 5", "quote it"),
        ("version = 1.5", "whole numbers"),
        ("not " * 40 + "id = 1", "nested deeper"),
        ("version = 99999999999999999999", "does not fit 64 bits"),
        ("reward > 1e999", "not a finite number"),
        ("reward = 1e300", "not a finite number of float"),
        ("tags = 'x'", "only 'is null' works"),
        ("reward = 1__0", "cannot read '1__0'"),
    ],
)
def test_text_errors_say_where_and_what(text, says):
    with pytest.raises(RecipeError, match=says):
        parse_text(text, SCHEMA)


def test_mapping_errors_come_all_at_once():
    value = {"rewrd": 1, "text": {"equals": "a", "contains": 3}, "version": {"ge": "x"}, "any": 3}
    with pytest.raises(RecipeError) as caught:
        parse_filter(value, SCHEMA)
    for part in (
        "did you mean 'reward'",
        "no operator 'equals'",
        "holds text",
        "whole numbers",
        "any: wants a list",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None, b"1", [1]])
def test_float_column_refuses(value):
    with pytest.raises(RecipeError):
        to_sql(Compare("reward", "gt", value), SCHEMA)


def test_lone_surrogate_is_refused():
    with pytest.raises(RecipeError, match="not valid Unicode"):
        to_sql(Compare("text", "eq", "\ud800"), SCHEMA)


def test_deep_and_large_filters_are_refused():
    deep: object = {"id": 1}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(RecipeError, match="nested deeper"):
        parse_filter(deep, SCHEMA)
    tree = IsNull("id")
    for _ in range(200):
        tree = Not(tree)
    with pytest.raises(RecipeError, match="nested deeper"):
        to_sql(tree, SCHEMA)
    with pytest.raises(RecipeError, match="more than"):
        parse_filter([{"id": n} for n in range(3000)], SCHEMA)
    with pytest.raises(RecipeError, match="values"):
        parse_filter({"id": list(range(200_000))}, SCHEMA)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["reward", "text", "any", "all", "not", "in", "ge", "is_null", "contains", ""]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=10,
    )
)
def test_any_plain_value_is_a_filter_or_a_recipe_error(value):
    try:
        made = parse_filter(value, SCHEMA)
    except RecipeError:
        return
    to_sql(made, SCHEMA)


@pytest.mark.slow
@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            ["reward", "text", ">", "=", "in", "(", ")", "'a'", "1", "and", "or", "not", "is", "null", ","]
        ),
        max_size=12,
    ).map(" ".join)
)
def test_any_text_is_a_filter_or_a_recipe_error(text):
    try:
        made = parse_text(text, SCHEMA)
    except RecipeError:
        return
    to_sql(made, SCHEMA)
    assert read_text(to_text(read_text(text))) == read_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "not " * 14 + "reward = 1",
        "(" * 14 + "reward = 1" + ")" * 14,
        "a = 1 or b = 2 and c = 3 and (d = 4 or not (e = 'it''s' and f > -1e-05))",
        "a is null or not b is not null and c not in ('x', 2.5) and d contains 'x, y' and e starts with 'z'",
    ],
)
def test_a_filter_is_written_as_it_is_read(text):
    made = read_text(text)
    assert read_text(to_text(made)) == made


def test_what_no_text_describes_is_not_written():
    for made in (In("id", ()), And(()), Compare("created_at", "lt", datetime(2026, 1, 1, tzinfo=UTC))):
        with pytest.raises(RecipeError, match="no text describes"):
            to_text(made)


def test_experience_filter_uses_plain_column_names():
    made = parse_filter({"reward": {"ge": 0.5}, "source": "rollout"}, EXPERIENCES)
    wanted = "((reward >= 0.5e0 AND reward <= CAST('inf' AS DOUBLE)) AND (source = 'rollout'))"
    assert to_sql(made, EXPERIENCES) == wanted
