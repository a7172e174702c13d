"""The reading commands: what they print, as text and as JSON, and how they refuse."""

import csv
import io
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli import buffer_read
from rft_data.cli.app import app as whole
from tests.rft_data.conftest import make_experience

app = typer.Typer(pretty_exceptions_enable=False)
for command in ("info", "head", "query", "search", "lineage", "tag", "branch"):
    app.command(command)(getattr(buffer_read, command))


HUB = f"hub://10.0.0.5:4400/{'0' * 64}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *(f"buffer {name} HUB" for name in ("info", "head", "tag", "quarantine")),
        *(
            "buffer query HUB 'select 1'",
            "buffer search HUB words",
            "buffer branch HUB new",
            "buffer lineage HUB 0",
        ),
        *(f"buffer {name} HUB" for name in ("verify", "repair", "compact", "books")),
        "buffer export HUB out.jsonl --format trl",
    ],
)
def test_a_hub_is_no_buffer_to_look_into_and_those_who_take_one_are_named(command: str) -> None:
    done = CliRunner().invoke(whole, shlex.split(command.replace("HUB", HUB)))
    assert done.exit_code == 2, done.output
    first, *others = done.stderr.splitlines()
    assert first.startswith(
        f"error: {HUB} is a hub, which hands out rows and not the buffer's own files; give"
    )
    assert first.endswith("`rft status`, `rft view` and `rft data feedback` take a hub.")
    assert len(others) <= 1


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli") / "buffer"
    with Buffer(folder) as buffer:
        buffer.append(
            [
                make_experience(
                    n,
                    reward=n / 10 if n else None,
                    completion_text=f"answer number{n}\n\x1b[31m",
                    source="rollout" if n < 8 else "expert",
                )
                for n in range(10)
            ]
        )
    return str(folder)


def rft(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output + done.stderr
    assert "Traceback" not in done.output
    return done.stdout if code == 0 else done.stderr


def as_json(*arguments: str):
    return json.loads(rft(*arguments, "--json"))


@pytest.mark.slow
def test_info_says_what_is_there(uri):
    facts = as_json("info", uri)
    assert facts["tables"]["experiences"]["rows"] == 10
    assert facts["tables"]["experiences"]["bytes"] > 1000
    assert facts["tables"]["experiences"]["fragments"] == 1
    assert facts["sources"] == {"rollout": 8, "expert": 2}
    assert (facts["scored"], facts["reward_mean"]) == (9, pytest.approx(0.5))
    assert facts["versions"] == [3, 3]
    assert facts["owner_pid"] is None
    assert facts["runs"][0]["run_id"] == "run"
    text = rft("info", uri)
    assert "owner       none" in text
    assert "9 scored, mean reward 0.5, policy versions 3 to 3" in text


def test_info_names_a_living_owner(tmp_path: Path):
    with Buffer(tmp_path / "b"):
        assert "process" in rft("info", str(tmp_path / "b"))


@pytest.mark.slow
def test_head_filters_and_chooses_columns(uri):
    rows = as_json("head", uri, "-n", "2", "--where", "source = 'rollout'", "--columns", "seq, reward")
    assert [row["seq"] for row in rows] == [6, 7]
    assert set(rows[0]) == {"seq", "reward"}
    assert [row["seq"] for row in as_json("head", uri, "-n", "3", "--columns", "seq")] == [7, 8, 9]
    assert "\x1b" not in rft("head", uri)
    assert "no such rows" in rft("head", uri, "--table", "leases")


def test_head_refuses_with_a_suggestion(uri, tmp_path: Path):
    assert "did you mean 'experiences'" in rft("head", uri, "--table", "experience", code=2)
    assert "did you mean 'reward'" in rft("head", uri, "--columns", "rewrd", code=2)
    assert "did you mean 'reward'" in rft("head", uri, "--where", "rewrd > 1", code=2)
    assert "there is no buffer" in rft("head", str(tmp_path / "absent"), code=2)
    assert not (tmp_path / "absent").exists()


@pytest.mark.slow
def test_query_prints_a_table_or_json(uri):
    sql = "select source, count(*) as n from experiences group by 1 order by n"
    assert as_json("query", uri, sql)["rows"] == [{"source": "expert", "n": 2}, {"source": "rollout", "n": 8}]
    assert rft("query", uri, sql).splitlines()[0].split() == ["source", "n"]
    assert 'Did you mean "experiences"' in rft("query", uri, "select * from experienes", code=2)


@pytest.mark.slow
def test_tag_then_read_as_of_it(uri):
    assert "no tags" in rft("tag", uri)
    assert as_json("tag", uri, "good", "--where", "reward >= 0.5", "--note", "for sft")["rows"] == 10
    assert "for sft" in rft("tag", uri)
    with Buffer(uri) as buffer:
        buffer.append([make_experience(77, reward=1.0)])
    rows = as_json("head", uri, "-n", "99", "--as-of", "good", "--columns", "seq")
    assert [row["seq"] for row in rows] == [5, 6, 7, 8, 9]
    found = as_json("query", uri, "select count(*) as n from experiences", "--as-of", "good")
    assert found["rows"] == [{"n": 5}]
    assert "--as-of names experiences" in rft("head", uri, "--table", "tasks", "--as-of", "good", code=2)
    assert "no tag 'goood'" in rft("head", uri, "--as-of", "goood", code=2)
    assert "names other rows" in rft("tag", uri, "good", code=1)


@pytest.mark.slow
def test_branch_copies_a_tag(uri, tmp_path: Path):
    done = as_json("branch", uri, str(tmp_path / "copy"), "--where", "seq < 4")
    assert (done["experiences"], done["new"]["experiences"]) == (4, 4)
    assert "holds 4 experiences; new: nothing" in rft(
        "branch", uri, str(tmp_path / "copy"), "--where", "seq < 4"
    )


@pytest.mark.slow
def test_search_by_words(uri):
    assert "no full-text index" in rft("search", uri, "number3", code=2)
    assert [row["seq"] for row in as_json("search", uri, "number3", "--index")] == [3]
    assert [row["seq"] for row in as_json("search", uri, "NUMBER3 number9", "--where", "seq < 9")] == [3]
    text = rft("search", uri, "number3")
    assert "seq 3" in text
    assert "\x1b" not in text
    assert "nothing found" in rft("search", uri, "absent")
    assert "give either a text" in rft("search", uri, code=2)
    assert "name the --model" in rft("search", uri, "--like", "3", code=2)


@pytest.mark.slow
def test_search_by_meaning(uri, tmp_path: Path):
    from tests.rft_data.reading.test_search import tiny_sentence_model

    model = str(tiny_sentence_model(tmp_path / "model"))
    text = "answer number3\n\x1b[31m"
    assert as_json("search", uri, text, "--model", model, "--index", "-n", "1")[0]["seq"] == 3
    assert as_json("search", uri, text, "--model", model, "--hybrid", "-n", "1")[0]["seq"] == 3
    assert 3 not in [row["seq"] for row in as_json("search", uri, "--like", "3", "--model", model)]


@pytest.mark.slow
def test_lineage_by_number_id_and_group(uri):
    line = as_json("lineage", uri, "3")
    assert line["experience"]["seq"] == 3
    assert as_json("lineage", uri, line["experience"]["experience_id"])["experience"]["seq"] == 3
    assert "used        in no lease, by no stage" in rft("lineage", uri, "3")
    assert len(as_json("lineage", uri, "--group", "run/g0")["members"]) >= 10
    assert "reward" in rft("lineage", uri, "--group", "run/g0")
    assert "no experience with row number 4000" in rft("lineage", uri, "4000", code=2)
    assert "name either" in rft("lineage", uri, code=2)


@pytest.mark.slow
def test_query_prints_csv_that_a_program_reads_back(uri):
    sql = "select seq, reward, completion_text, token_ids from experiences where seq in (0, 5) order by seq"
    header, *rows = csv.reader(io.StringIO(rft("query", uri, sql, "--format", "csv")))
    assert header == ["seq", "reward", "completion_text", "token_ids"]
    assert rows == [
        ["0", "", "answer number0\n\x1b[31m", "[5, 6, 7, 8]"],
        ["5", "0.5", "answer number5\n\x1b[31m", "[5, 6, 7, 8]"],
    ]
    assert "exclude each other" in rft("query", uri, sql, "--format", "csv", "--json", code=2)


@pytest.mark.slow
def test_query_prints_csv_with_escapes_on_a_terminal(uri):
    ours, theirs = pty.openpty()
    sql = "select completion_text from experiences where seq = 0"
    asked = [sys.executable, "-m", "rft_data.cli.app", "buffer", "query", uri, sql, "--format", "csv"]
    subprocess.run(asked, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    assert shown == ["completion_text", '"answer number0', '\\x1b[31m"']
