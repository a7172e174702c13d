"""Tasks from files of every kind, datasets and functions: one question is one task, whatever holds it."""

import argparse
import gzip
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import datasets
import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rft_data.buffer import Buffer
from rft_data.core.canonical import bytes_id
from rft_data.core.errors import MissingFileError, RecipeError, RowError
from rft_data.core.images import image_ids, image_part
from rft_data.core.rows import Task
from rft_data.exchange.formats.modelscope import open_named
from rft_data.recipe.stored import as_it_was_read
from rft_data.recipe.tasksets import Taskset
from rft_data.run.build import store_task_images, taskset_tasks
from rft_data.run.data_check import check_source
from tests.ports import free_port

ROWS: list[dict[str, Any]] = [
    {"question": f"{n} + {n}?", "answer": str(2 * n), "level": str(n % 3)} for n in range(9)
]
NAMED = {"prompt": "question", "answer": "answer"}


def taskset(source: dict[str, Any], **fields: Any) -> Taskset:
    return Taskset.model_validate({"name": "t", "source": source, **fields})


def tasks(source: dict[str, Any], **fields: Any) -> list[Task]:
    return taskset_tasks(taskset(source, **fields))


def jsonl(path: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"use": "file", "path": str(path)}


def _write(folder: Path, suffix: str) -> Path:
    path, table = folder / f"rows{suffix}", pa.Table.from_pylist(ROWS)
    text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress(text))
    elif suffix == ".jsonl.zst":
        path.write_bytes(pa.compress(text, "zstd", asbytes=True))
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        lance.write_dataset(table, str(path))
    return path


@pytest.mark.parametrize(
    "suffix", [".jsonl.gz", ".jsonl.zst", ".json", ".csv", ".parquet", ".arrow", ".lance"]
)
def test_a_file_of_any_kind_gives_the_tasks_that_json_lines_give(tmp_path: Path, suffix: str) -> None:
    plain = jsonl(tmp_path / "plain.jsonl", *ROWS)
    expected = tasks({**plain, "use": "jsonl"}, heldout=0.4)
    source = {"use": "file", "path": str(_write(tmp_path, suffix))}
    assert tasks(source, **NAMED, heldout=0.4) == expected
    assert [one.task_id for one in tasks(source, **NAMED)] == [one.task_id for one in expected]


@pytest.mark.slow
def test_a_saved_dataset_and_a_folder_of_parquet_files_are_datasets(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": whole, "test": whole.select(range(2))}).save_to_disk(tmp_path / "saved")
    source = {"use": "huggingface", "path": str(tmp_path / "saved")}
    expected = tasks(jsonl(tmp_path / "plain.jsonl", *ROWS), **NAMED)
    assert tasks({**source, "split": "train"}, **NAMED) == expected
    assert tasks({**source, "split": "test"}, **NAMED) == expected[:2]
    with pytest.raises(MissingFileError, match="holds the splits train, test; choose one with 'split'"):
        tasks(source, **NAMED)
    folder = tmp_path / "folder"
    folder.mkdir()
    whole.to_parquet(folder / "train-00000-of-00001.parquet")
    streamed = {"use": "huggingface", "path": str(folder), "streaming": True, "limit": 4}
    assert tasks(streamed, **NAMED) == expected[:4]
    assert tasks({"use": "huggingface", "path": str(folder), "split": "train[:3]"}, **NAMED) == expected[:3]


@pytest.mark.slow
def test_a_dataset_of_the_hub_is_read_at_the_commit_that_the_log_names(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def load_dataset(repo: str, **arguments: Any) -> Any:  # tests have no network
        asked.append((repo, arguments))
        if arguments.get("streaming"):
            return datasets.IterableDataset.from_generator(lambda: itertools.cycle(ROWS))  # it never ends
        return datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr(
        "huggingface_hub.HfApi.dataset_info", lambda *_, revision: argparse.Namespace(sha="c0ffee")
    )
    source = {"use": "huggingface", "path": "org/sums", "name": "main", "revision": "v1"}
    with caplog.at_level(logging.INFO):
        assert len(tasks(source, **NAMED)) == 9
    assert "rows are read from hf://org/sums/main@c0ffee" in caplog.text
    streamed = {**source, "split": "test", "streaming": True, "where": "level = '1'", "limit": 2}
    assert [one.answer for one in tasks(streamed, **NAMED)] == ["2", "8"]
    pinned = {"name": "main", "revision": "c0ffee"}
    assert asked == [
        ("org/sums", {**pinned, "split": None}),
        ("org/sums", {**pinned, "split": "test", "streaming": True}),
    ]


@pytest.mark.heavy
def test_a_dataset_of_modelscope_is_read_from_what_its_package_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{free_port()}")  # tests have no network
    monkeypatch.setattr("time.sleep", lambda _: None)  # between its tries
    commit = "c0ffee" + 34 * "0"
    snapshot = tmp_path / "datasets" / "org--sums" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    jsonl(snapshot / "train.jsonl", *ROWS)
    source = {"use": "modelscope", "path": "org/sums", "revision": commit, "where": "level = '1'"}
    assert [one.answer for one in tasks(source, **NAMED)] == ["2", "8", "14"]
    name = f"modelscope://org/sums:train@{commit}"
    assert [found.row for found in open_named(name).rows] == ROWS
    [found] = check_source(name, {"prompt": "question", "completion": "answer"}).tasksets
    assert (found.tasks, found.problems, "modelscope" in found.write) == (9, [], True)
    with pytest.raises(RecipeError, match="is not a dataset of ModelScope; write modelscope://owner/name"):
        open_named("modelscope://sums")
    for changed in ({"revision": None}, {"revision": "d" + commit[1:]}):
        with pytest.raises(
            MissingFileError, match=r"modelscope://org/sums@.* cannot be fetched: .*Offline, give"
        ):
            tasks({**source, **changed}, **NAMED)


@pytest.mark.slow
def test_rows_are_chosen_then_shuffled_then_limited(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "a.jsonl",
        *({**row, "meta": {"n": n, "text": "x" if n else 3}} for n, row in enumerate(ROWS)),
    )
    named = {**NAMED, "metadata": []}
    asked = [one.messages[0]["content"] for one in tasks({**source, "where": "level = '1'"}, **named)]
    assert asked == ["1 + 1?", "4 + 4?", "7 + 7?"]
    late = jsonl(tmp_path / "b.jsonl", *({"question": "q", "answer": "a"} for _ in range(3)), *ROWS)
    assert len(tasks({**late, "where": "level = '1'"}, **named)) == 3
    mixed = {**source, "where": "question LIKE '%+%' AND answer <> '0'", "shuffle": 3}
    every = [one.answer for one in tasks(mixed, **named)]
    assert sorted(every, key=lambda one: int(one or "")) == [str(2 * n) for n in range(1, 9)]
    assert every != [str(2 * n) for n in range(1, 9)]
    assert [one.answer for one in tasks({**mixed, "limit": 3}, **named)] == every[:3]
    assert [one.answer for one in tasks({**mixed, "shuffle": 4}, **named)] != every


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "levle = 1",
            r"'where' cannot be evaluated: Binder Error: .*levle.* columns question, answer, level",
        ),
        ("level = ", "Parser Error"),
        ("question > 3", "Cannot compare values of type VARCHAR"),
        ("question::int > 3", "Conversion Error: .*'0 . 0.'"),
        (
            "exists (select * from read_text('/etc/hostname'))",
            "'where' cannot be evaluated: Permission Error",
        ),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(tmp_path: Path, where: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tasks({**jsonl(tmp_path / "a.jsonl", *ROWS), "where": where}, **NAMED)


def test_a_function_of_ones_own_makes_rows_and_its_mistakes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def rows(n, odd=False):\n    for i in range(n):\n"
        "        yield {'question': f'{i} + {i}?', 'answer': str(2 * i), 'level': str(i % 3)}\n"
        "    if odd:\n        yield [1]\n\n\ndef broken():\n    raise KeyError('gone')\n"
    )
    source = {"use": f"{file}:rows", "args": {"n": 9}}
    assert tasks(source, **NAMED) == tasks(jsonl(tmp_path / "a.jsonl", *ROWS), **NAMED)
    with pytest.raises(RowError, match=r"mine\.py:rows: row 10 is a list; wanted a map"):
        tasks({**source, "args": {"n": 9, "odd": True}}, **NAMED)
    with pytest.raises(RecipeError, match=r"it failed after row 0 \(TypeError: .*'m'.*the arguments \['m'\]"):
        tasks({**source, "args": {"m": 9}}, **NAMED)
    with pytest.raises(RecipeError, match=r"failed after row 0 \(KeyError: 'gone'"):
        tasks({"use": f"{file}:broken"}, **NAMED)


def test_columns_may_be_nested_and_texts_may_be_templates(tmp_path: Path) -> None:
    row = {
        "problem": {"text": "1+1?"}, "hints": ["count", "add"], "truth": {"value": 2, "unit": "m"},
        "game": "sums", "scorer": "number",
    }  # fmt: skip
    [task] = tasks(
        jsonl(tmp_path / "a.jsonl", row),
        prompt="{problem.text}\n{hints}\nIn {{braces}}.",
        answer="{truth.value} {truth.unit}",
        system="You play {game}.",
        workflow="{game}",
        reward="{scorer}",
        metadata=["truth.value"],
    )
    assert task.messages == (
        {"role": "system", "content": "You play sums."},
        {"role": "user", "content": "1+1?\ncount\nadd\nIn {braces}."},
    )
    assert (task.answer, task.workflow, task.reward) == ("2 m", "sums", "number")
    assert task.metadata == {"truth.value": 2}
    [plain] = tasks(
        jsonl(tmp_path / "a.jsonl", row), prompt="problem.text", answer="truth.value", workflow="x"
    )
    assert (plain.messages[0]["content"], plain.answer, plain.workflow) == ("1+1?", "2", "x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "{wrong}"}, r"a\.jsonl:1: there is no field 'wrong'; found chat, question"),
        ({"prompt": "{chat}"}, "field 'chat' holds list; a template takes text"),
        ({"prompt": "chat", "system": "Be brief."}, "has a system message of its own; remove 'system'"),
    ],
)
def test_a_row_that_does_not_fit_the_columns_is_named(
    tmp_path: Path, fields: dict[str, str], message: str
) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    with pytest.raises(RowError, match=message):
        tasks(jsonl(tmp_path / "a.jsonl", {"question": "1?", "chat": chat}), answer=None, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": r"\boxed{}"}, "has '{}', which is no column's name; write '{{' and '}}'"),
        ({"prompt": "{a"}, "is broken: expected '}' before end of string"),
        ({"system": "{a:>3}"}, "'{a:>3}', which is no column's name"),
        ({"answer": "answer"}, "'answer' is given and 'prompt' is not"),
        ({"source": {"use": "fil", "path": "x"}}, "'use' is file, huggingface, modelscope, jsonl"),
        ({"source": {"use": "huggingface", "path": "a/b", "streaming": True}}, "give 'limit'"),
        (
            {"source": {"use": "stored"}, "prompt": None},
            "'prompt' names a column, and the source is 'stored'",
        ),
        ({"source": {"use": "stored"}, "system": "s"}, "'system' is for rows of a table"),
    ],
)
def test_what_a_taskset_cannot_mean_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        taskset(**{"source": {"use": "file", "path": "x"}, **fields})


def test_columns_are_recognised_and_the_log_says_as_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = jsonl(tmp_path / "a.jsonl", {"question": "1+1?", "answer": "It is 2.\n#### 2", "n": 7})
    with caplog.at_level(logging.INFO):
        [task] = tasks(source)
    assert (task.messages[0]["content"], task.answer, task.metadata) == ("1+1?", "2", {"n": 7})
    assert "taskset 't': columns question, answer, n are read as 'gsm8k'" in caplog.text
    assert tasks(source, metadata=[])[0].metadata == {}
    assert tasks({**source, "use": "jsonl"}, prompt=None, answer=None) == [task]
    odd = jsonl(tmp_path / "b.jsonl", {"frage": "1+1?", "antwort": "2"})
    with pytest.raises(
        RecipeError, match=r"(?s)b\.jsonl: the columns are antwort, frage; no format .*'prompt: COLUMN'"
    ):
        tasks(odd)
    both = jsonl(tmp_path / "b.jsonl", {"question": "a", "answer": "b", "problem": "c", "solution": "d"})
    with pytest.raises(RecipeError, match="they fit gsm8k and problem-solution; say which columns are meant"):
        tasks(both)


def test_images_that_a_dataset_stores_are_shown_and_other_bytes_are_refused(tmp_path: Path) -> None:
    red = b"\x89PNG\r\n\x1a\nred"
    rows = [{"question": "Which?", "answer": "red", "image": {"bytes": red, "path": None}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    section = taskset({"use": "file", "path": str(tmp_path / "a.parquet")}, **NAMED, images="image")
    [task] = taskset_tasks(section)
    assert task.messages[0]["content"] == [image_part(bytes_id(red)), {"type": "text", "text": "Which?"}]
    assert task.metadata == {}
    with Buffer(tmp_path / "buffer") as buffer:
        store_task_images([section], buffer)
        assert buffer.payload(image_ids(task.messages)[0]) == ("image/png", red)
    plain = {"use": "file", "path": str(tmp_path / "a.parquet")}
    with pytest.raises(RowError, match=r"a\.parquet:1: a column holds image/png: name it with 'images'"):
        tasks(plain, **NAMED)
    assert tasks(plain, **NAMED, metadata=[])[0].messages[0]["content"] == "Which?"


@pytest.mark.slow
def test_a_stored_recipe_reads_the_same_tasks_again(tmp_path: Path) -> None:
    source = {**jsonl(tmp_path / "a.jsonl", *ROWS), "where": "level = '1'", "limit": 2}
    for fields in ({}, NAMED, {"metadata": []}, {**NAMED, "metadata": [], "system": "s"}):
        section = taskset(source, **fields)
        [stored] = as_it_was_read({"tasks": [section.model_dump(mode="json")]})["tasks"]
        again = Taskset.model_validate(stored)
        assert again == section
        assert taskset_tasks(again) == taskset_tasks(section)


def test_a_row_that_cannot_be_read_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": NaN}\n')
    with pytest.raises(RowError, match=r"a\.jsonl:2: NaN is not JSON"):
        tasks({"use": "file", "path": str(tmp_path / "a.jsonl")}, **NAMED)
    with pytest.raises(MissingFileError, match="is a folder; for a dataset's folder write use: huggingface"):
        tasks({"use": "file", "path": str(tmp_path)}, **NAMED)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(RecipeError, match=r"files called '\.txt' are not read; wanted \.jsonl"):
        tasks({"use": "file", "path": str(tmp_path / "a.txt")}, **NAMED)


DOORS = [
    {"type": "function", "function": {"name": "open", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.mark.parametrize("given", [DOORS, json.dumps(DOORS)])
def test_each_row_may_offer_tools(tmp_path: Path, given: object) -> None:
    rows = ({"q": "Open.", "tools": given, "kind": "a"}, {"q": "Say hello.", "tools": None, "kind": "b"})
    for source in (jsonl(tmp_path / "t.jsonl", *rows), {"use": "jsonl", "path": str(tmp_path / "t.jsonl")}):
        first, second = tasks(source, prompt="q", answer=None, tools="tools")
        assert (first.tools, second.tools) == (DOORS, None)
        assert first.metadata == {"kind": "a", "offered_tools": DOORS}
        assert second.metadata == {"kind": "b"}
        untouched, _ = tasks(source, prompt="q", answer=None)
        assert untouched.tools is None, "a column of this name alone offers nothing"


@pytest.mark.parametrize("given", ["[{", {"name": "open"}, [{"type": "function"}], [{"function": {}}]])
def test_tools_that_are_no_definitions_name_their_row(tmp_path: Path, given: object) -> None:
    source = jsonl(tmp_path / "t.jsonl", {"q": "a", "tools": DOORS}, {"q": "b", "tools": given})
    with pytest.raises(RowError, match=r"t\.jsonl:2: column 'tools'"):
        tasks(source, prompt="q", answer=None, tools="tools")
