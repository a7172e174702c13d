"""`rft buffer import` and `rft buffer export` as commands."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rft_data.buffer import Buffer
from rft_data.cli.buffer_io import export, import_
from tests.rft_data.exchange.formats.conftest import jsonl

app = typer.Typer()
app.command("import")(import_)
app.command("export")(export)


def rft(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "rows.jsonl", [{"question": "1+1=", "answer": "#### 2"}, {"question": "x"}])


@pytest.mark.slow
def test_import_prints_the_counts(source: Path, tmp_path: Path) -> None:
    done = rft("import", tmp_path / "b", source, "--taskset", "set")
    assert done.exit_code == 0
    assert f"{source} (gsm8k) into taskset 'set'" in done.stdout
    assert "stored                1  new: 1 tasks, 1 experiences" in done.stdout
    assert f"    {source}:2: column 'answer' holds nothing; text is needed" in done.stdout


@pytest.mark.slow
def test_import_and_export_print_json(source: Path, tmp_path: Path) -> None:
    done = rft(
        "import", tmp_path / "b", source, "--json", "--format", "gsm8k", "--split", "heldout", "--limit", "1"
    )
    report = json.loads(done.stdout)
    assert (report["rows"], report["stored"], report["quarantined"]) == (1, 1, 0)
    done = rft("export", tmp_path / "b", tmp_path / "sft.jsonl", "--format", "sft", "--json")
    assert json.loads(done.stdout)["written"] == 1
    with Buffer(tmp_path / "b", read_only=True) as buffer:
        assert [task.split for task in buffer.tasks()] == ["heldout"]


@pytest.mark.slow
def test_export_prints_what_was_written_and_left_out(source: Path, tmp_path: Path) -> None:
    rft("import", tmp_path / "b", source, "--split", "heldout")
    done = rft("export", tmp_path / "b", tmp_path / "sft.jsonl", "--format", "sft")
    assert "written          1 of 1 selected" in done.stdout
    assert str(tmp_path / "sft.jsonl.README.md") in done.stdout
    done = rft("export", tmp_path / "b", tmp_path / "g.jsonl", "--format", "grpo")
    assert (done.exit_code, "1 x a task of split 'heldout' is not for training" in done.stderr) == (1, True)


@pytest.mark.slow
def test_where_is_a_line_of_text_about_the_formats_table(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+{i}=", "completion": "x", "label": i % 2} for i in range(10)]
    rft("import", tmp_path / "b", jsonl(tmp_path / "rows.jsonl", rows))
    out = tmp_path / "out.jsonl"
    done = rft("export", tmp_path / "b", out, "--format", "sft", "--where", "reward >= 0.5 and seq < 6")
    assert "written          3 of 3 selected" in done.stdout
    assert '`{"all": [' in (tmp_path / "out.jsonl.README.md").read_text()
    done = rft("export", tmp_path / "b", tmp_path / "x.jsonl", "--format", "dpo", "--where", "reward > 0")
    assert (done.exit_code, "say with table= (--table)" in done.stderr) == (2, True)
    done = rft("export", tmp_path / "b", tmp_path / "x.jsonl", "--format", "sft", "--where", "rewrd > 0")
    assert (done.exit_code, "rewrd" in done.stderr) == (2, True)


def test_help_is_short(tmp_path: Path) -> None:
    for name in ("import", "export"):
        done = rft(name, "--help")
        assert done.exit_code == 0
        assert len(done.stdout.splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("import", "b", "nothing.jsonl"), 2, "there is no file or dataset folder"),
        (("import", "b", "rows.jsonl", "--format", "gsm"), 2, "did you mean 'gsm8k'?"),
        (("export", "none", "o.jsonl", "--format", "sft"), 2, "there is no buffer"),
        (("export", "b", "o.xml", "--format", "sft"), 2, "files called '.xml' are not written"),
        (("export", "b", "o.jsonl"), 2, "Missing option"),
    ],
)
def test_failures_have_their_message_and_exit_code(
    source: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    rft("import", "b", source)
    done = rft(*arguments)
    assert done.exit_code == code
    assert message in done.stderr


def test_no_buffer_is_made_for_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "x.jsonl", [{"colour": "red"}])
    assert rft("import", tmp_path / "b", source).exit_code == 2
    assert not (tmp_path / "b").exists()


def test_an_import_that_takes_nothing_is_no_success(tmp_path: Path) -> None:
    done = rft(
        "import", tmp_path / "b", jsonl(tmp_path / "x.jsonl", [{"question": "x"}]), "--format", "gsm8k"
    )
    assert done.exit_code == 1
    assert "quarantined           1" in done.stdout
