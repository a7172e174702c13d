"""SQL over a buffer: right answers, read-only, killed when it takes too long or too much."""

from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RftError, StalledError
from rft_data.core.filters import Compare
from rft_data.reading.query import query
from rft_data.reading.query_worker import NOT_SQL, _check
from tests.processes import children_of, runs
from tests.rft_data.conftest import make_experience


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory):
    with Buffer(tmp_path_factory.mktemp("query") / "buffer") as opened:
        rewards = [1.0, 0.5, None, 0.0, 0.25]
        opened.append(
            [make_experience(n, reward=r, completion_text=f"text {n}") for n, r in enumerate(rewards)]
        )
        yield opened


@pytest.mark.slow
def test_query_aggregates(stored):
    found = query(stored, "select source, count(*) n, avg(reward) mean from experiences group by 1")
    assert found.rows.to_pylist() == [{"source": "rollout", "n": 5, "mean": 0.4375}]
    assert not found.truncated


@pytest.mark.slow
def test_query_joins_tables_that_have_no_rows_yet(stored):
    sql = "select count(*) n from experiences e left join annotations a using (seq) where a.verdict is null"
    assert query(stored, sql).rows.to_pylist() == [{"n": 5}]


@pytest.mark.slow
def test_query_reads_json_columns(stored):
    sql = "select messages ->> '$[0].content' said from experiences where seq = 0"
    assert query(stored, sql).rows.to_pylist() == [{"said": "1+1="}]


@pytest.mark.slow
def test_query_reads_through_a_view(stored):
    found = query(stored, "select count(*) n from experiences", where=Compare("seq", "lt", 3))
    assert found.rows.to_pylist() == [{"n": 3}]


@pytest.mark.slow
def test_query_says_when_there_was_more(stored):
    found = query(stored, "select seq from experiences order by seq", max_rows=2)
    assert found.truncated
    assert found.rows["seq"].to_pylist() == [0, 1]
    assert not query(stored, "select seq from experiences", max_rows=5).truncated


REFUSED = [
    ("select rewrd from experiences", '"reward"'),
    ("select * from experienes", 'Did you mean "experiences"'),
    ("select 1; select 2", "exactly one SELECT is allowed, found SELECT, SELECT"),
    ("select * from read_csv('/etc/passwd')", "disabled by configuration"),
]
REFUSED_TOO = [
    ("selct 1", "syntax error"),
    ("select * from '/etc/passwd'", "does not exist"),
    ("select * from glob('/*')", "disabled by configuration"),
    ("select * from read_blob('/proc/self/environ')", "disabled by configuration"),
    ("select getenv('HOME')", "does not exist"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "says"), [*REFUSED, *(pytest.param(*case, marks=pytest.mark.slow) for case in REFUSED_TOO)]
)
def test_query_refuses(stored, sql, says):
    with pytest.raises(RecipeError, match=says):
        query(stored, sql)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("", "nothing"),
        ("insert into experiences values (1)", "INSERT"),
        ("create view v as select 1", "CREATE"),
        ("drop table experiences", "DROP"),
        ("copy (select 1) to '/tmp/x'", "COPY"),
        ("attach '/tmp/x.db'", "ATTACH"),
        ("install httpfs", "LOAD"),
        ("set memory_limit = '10GB'", "SET"),
        ("pragma version", "PRAGMA"),
    ],
)
def test_the_child_refuses_what_is_no_select_before_it_runs_anything(sql, found, capsys):
    import duckdb

    with pytest.raises(SystemExit) as ended:
        _check(duckdb.extract_statements(sql))
    assert ended.value.code == NOT_SQL
    assert capsys.readouterr().err == f"exactly one SELECT is allowed, found {found}."


@pytest.mark.slow
def test_query_streams_wide_columns_in_bounded_memory(tmp_path: Path):
    tokens = 1000
    wide = {
        "token_ids": list(range(tokens)),
        "action_mask": [0, *[1] * (tokens - 1)],
        "logprobs": [0.0, *[-0.5] * (tokens - 1)],
        "prompt_length": 1,
        "version_spans": ((3, 1, tokens),),
    }
    with Buffer(tmp_path / "buffer") as buffer:
        for start in range(0, 5120, 512):
            buffer.append([make_experience(n, **wide) for n in range(start, start + 512)])
        sql = "select sum(list_sum(logprobs)) total from experiences"
        found = query(buffer, sql, memory_bytes=256 << 20)
    assert found.rows.to_pylist() == [{"total": -0.5 * 999 * 5120}]


@pytest.mark.slow
def test_query_is_killed_at_its_deadline(stored):
    runaway = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b"
    with (
        children_of("rft_data.reading.query_worker") as started,
        pytest.raises(StalledError, match="did not finish within 1 s"),
    ):
        query(stored, runaway, deadline_s=1)  # it would take for ever
    [worker] = started
    assert not runs(worker)


@pytest.mark.slow
def test_query_is_stopped_at_its_memory_limit(stored):
    with pytest.raises(RftError, match="memory"):
        query(stored, "select len(repeat('x', 3000000000))", memory_bytes=256 << 20)


@pytest.mark.slow
def test_query_refuses_a_result_that_is_too_large(stored):
    with pytest.raises(RftError, match="larger than 64 MiB"):
        query(stored, "select repeat('x', 1000000) from range(200)")


def test_query_does_not_inherit_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rft_data.reading.query import _run

    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nenv\nexit 7\n")
    script.chmod(0o700)
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setattr("sys.executable", str(script))
    code, _, err = _run("{}", 60)
    assert code == 7
    assert "LANCE_CPU_THREADS=2" in err
    assert "canary" not in err


@pytest.mark.slow
def test_query_results_are_frames_for_those_who_want_them(stored):
    frame = query(stored, "select seq, reward from experiences order by seq").to_pandas()
    assert frame["seq"].tolist() == [0, 1, 2, 3, 4]
    assert frame["reward"].mean() == 0.4375
