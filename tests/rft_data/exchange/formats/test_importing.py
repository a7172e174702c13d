"""What an import stores, sets aside and counts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError, UnknownComponentError
from rft_data.exchange.formats import import_into, importing
from rft_data.exchange.formats.inputs import Source
from rft_data.exchange.formats.jsonlines import Found
from tests.rft_data.exchange.formats.conftest import contents, jsonl, quarantined

PAIR = {"prompt": "2+2=", "completion": "4"}


def pairs(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i}+{i}=", "completion": str(2 * i)} for i in range(count)]


@pytest.mark.slow
def test_rows_in_are_stored_or_there_already_or_quarantined(buffer: Buffer, tmp_path: Path) -> None:
    rows: list[Any] = [*pairs(3), PAIR, {"prompt": "x"}, PAIR, {**PAIR, "completion": ["no message"]}]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    with path.open("a") as stream:
        stream.write('{"prompt": "\\ud800", "completion": "x"}\nnot json\n')
    report = import_into(buffer, path)
    assert (report.rows, report.stored, report.already_there, report.quarantined) == (9, 3, 2, 4)
    assert report.new == {"tasks": 0, "experiences": 3, "preferences": 0, "feedback": 0}
    assert report.problems == quarantined(buffer)
    assert [problem.removeprefix(f"{path}:").split(" ")[0] for problem in report.problems] == [
        "5:",
        "7:",
        "8:",
        "9:",
    ]
    assert "prompt holds a lone surrogate" in report.problems[2]
    assert len(buffer) == 3


@pytest.mark.slow
def test_importing_twice_stores_nothing_new(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [*pairs(5), {"prompt": "x"}])
    first = import_into(buffer, path)
    stored, aside = contents(buffer), quarantined(buffer)
    second = import_into(buffer, path)
    assert (first.stored, second.stored, second.already_there, second.quarantined) == (5, 0, 5, 1)
    assert contents(buffer) == stored
    assert quarantined(buffer) == aside
    assert buffer.counts()["runs"] == 1


@pytest.mark.slow
def test_the_same_rows_get_the_same_ids_in_another_buffer(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", pairs(5))
    import_into(buffer, path, taskset="set")
    with Buffer(tmp_path / "other") as other:
        import_into(other, jsonl(tmp_path / "else.jsonl", pairs(5)[::-1]), taskset="set")
        ids = [b.read("experiences", ["experience_id"]).column(0).to_pylist() for b in (buffer, other)]
    assert ids[0] == ids[1][::-1]
    assert len(set(ids[0])) == 5


def test_a_quarantined_row_says_what_it_was(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [PAIR, {**PAIR, "completion": ""}])
    import_into(buffer, path)
    row = buffer.read("quarantine").to_pylist()[0]
    assert row["reason"] == f"{path}:2: column 'completion' is empty"
    kept = json.loads(row["row"])
    assert (kept["place"], kept["format"]) == (f"{path}:2", "trl-prompt-completion")
    assert json.loads(kept["text"]) == {"prompt": "2+2=", "completion": ""}


@pytest.mark.slow
def test_rows_are_stored_in_chunks_and_a_bad_one_costs_no_other(
    buffer: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "CHUNK_ROWS", 10)
    rows: list[Any] = pairs(95)
    rows[::7] = [{"prompt": 1}] * len(rows[::7])
    report = import_into(buffer, jsonl(tmp_path / "rows.jsonl", rows), format="trl-prompt-completion")
    assert (report.rows, report.stored, report.quarantined) == (95, 81, 14)
    assert [p.split(":")[1] for p in report.problems] == [str(7 * i + 1) for i in range(10)]
    assert buffer.counts()["quarantine"] == 14


@pytest.mark.slow
def test_no_more_rows_are_held_than_a_chunk(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "CHUNK_ROWS", 10)
    ahead: list[int] = []

    def rows() -> Iterator[Found]:
        for i, row in enumerate(pairs(50)):
            ahead.append(i - len(buffer))
            yield Found(f"x:{i}", row)

    monkeypatch.setattr(importing, "open_named", lambda _: Source("x", "x", rows()))
    assert import_into(buffer, "x").stored == 50
    assert max(ahead) <= 10


@pytest.mark.slow
def test_a_source_that_breaks_off_has_its_rows_stored_first(buffer: Buffer, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(pairs(3))[:-4])
    with pytest.raises(RowError, match=r"rows\.json:1: the JSON cannot be read on"):
        import_into(buffer, path)
    assert len(buffer) == 2
    path.write_text(json.dumps(pairs(3)))
    assert import_into(buffer, path).stored == 1


def test_limit_reads_only_so_many_rows(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [*pairs(5), "bad"])
    assert import_into(buffer, path, limit=3).rows == 3
    assert len(buffer) == 3


def test_an_import_is_recorded_as_a_run(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", pairs(2))
    import_into(buffer, path)
    run = buffer.read("runs").to_pylist()[0]
    assert run["run_id"] == "import/rows"
    assert json.loads(run["recipe"]) == {"import": str(path), "format": "trl-prompt-completion", "rows": 2}
    assert buffer.read("experiences", ["run_id"]).column(0).to_pylist() == ["import/rows"] * 2


def test_an_empty_file_is_an_error(buffer: Buffer, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n\n")
    with pytest.raises(RowError, match="holds no rows; there is nothing to import"):
        import_into(buffer, tmp_path / "rows.jsonl")


def test_a_file_without_a_good_row_needs_its_format_said(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [1, 2])
    with pytest.raises(
        RowError, match=r"rows.jsonl:1: found int, wanted an object; none of the first 2 rows"
    ):
        import_into(buffer, path)
    assert import_into(buffer, path, format="gsm8k").quarantined == 2


@pytest.mark.slow
def test_a_question_may_be_messages(buffer: Buffer, tmp_path: Path) -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    rows = [
        {"question": asked, "answer": "It is 4. #### 4"},
        {"question": ["2+2?"], "answer": "4"},
        {"question": [], "answer": "4"},
    ]
    report = import_into(buffer, jsonl(tmp_path / "rows.jsonl", rows))
    [task] = buffer.tasks()
    assert (list(task.messages), task.answer) == (asked, "4")
    [solution] = buffer.read("experiences", ["messages", "prompt_messages"]).to_pylist()
    assert (len(json.loads(solution["messages"])), solution["prompt_messages"]) == (3, 2)
    assert [one.split(": ", 1)[1] for one in report.problems] == [
        "column 'question'[0] is str; a message with role and content is needed",
        "column 'question' has no messages",
    ]


def test_format_overrides_what_the_columns_say(buffer: Buffer, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [PAIR])
    report = import_into(buffer, path, format="trl-prompt", split="heldout")
    assert (report.format, report.new["tasks"], len(buffer)) == ("trl-prompt", 1, 0)
    task = buffer.tasks()[0]
    assert (task.split, task.metadata["completion"]) == ("heldout", "4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"format": "gsm8"}, UnknownComponentError, "format 'gsm8' is not known; did you mean 'gsm8k'"),
        (
            {"format": "dpo"},
            RecipeError,
            "format 'dpo' is only written; to read such a file, one of:\n  rft:",
        ),
        ({"split": "test"}, RecipeError, "split is 'test'; tasks belong to 'train' or 'heldout'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_stored(
    buffer: Buffer, tmp_path: Path, arguments: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        import_into(buffer, jsonl(tmp_path / "rows.jsonl", [PAIR]), **arguments)
    assert sum(buffer.counts().values()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"note": "x" * (9 << 20)}, "note has 9437184 bytes; at most 8388608"),
        ({"note": {"k\ud800": 1}}, "a key of note holds a lone surrogate"),
    ],
)
def test_what_no_buffer_may_hold_is_quarantined(
    buffer: Buffer, tmp_path: Path, value: dict, reason: str
) -> None:
    report = import_into(buffer, jsonl(tmp_path / "rows.jsonl", [PAIR, {**PAIR, **value}]))
    assert (report.stored, report.quarantined) == (1, 1)
    assert reason in quarantined(buffer)[0]


def test_deep_nesting_is_quarantined(buffer: Buffer, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [json.dumps({**PAIR, "n": depth})[:-1] + ', "note": ' + "[" * depth + "]" * depth + "}"
            for depth in (60, 70, 600, 50_000)]  # fmt: skip
    path.write_text("\n".join(rows))
    report = import_into(buffer, path)
    assert (report.stored, report.quarantined) == (1, 3)
    assert "nested deeper than 64 levels" in report.problems[0]


@pytest.mark.slow
def test_a_row_of_which_one_part_is_bad_is_not_stored_in_part(
    buffer: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # validation refuses an experience whose text is over its limit; the task beside it must not stay behind
    long = "x" * (5 << 20)
    row = {"question": long, "answer": long + "#### 1"}
    report = import_into(buffer, jsonl(tmp_path / "rows.jsonl", [row, {"question": "q", "answer": "#### 1"}]))
    assert (report.stored, report.quarantined) == (1, 1)
    assert (len(buffer.tasks()), len(buffer)) == (1, 1)
    assert "rows.jsonl:1: messages has " in report.problems[0]
