"""What tasks are made of: files with text or messages, further columns, and tasks that a buffer holds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.heldout import prompt_share
from rft_data.core.rows import Task
from rft_data.core.words import Split
from rft_data.exchange.formats import import_into
from rft_data.exchange.formats.jsonlines import read_json
from rft_data.recipe.task_sources import StoredTasks
from rft_data.run.stored_tasks import stored_tasks
from tests.jsonl import jsonl_tasks

SYSTEM = {"role": "system", "content": "Be brief."}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **settings: Any) -> list[Task]:
    return jsonl_tasks(path, **{"prompt": "prompt", **settings})


def test_a_list_of_chat_messages_is_the_prompt_and_not_its_python_text(tmp_path: Path) -> None:
    messages = [SYSTEM, {"role": "user", "content": "1+1?", "name": None}]
    [task] = read(write(tmp_path / "a.jsonl", {"prompt": messages, "answer": 2}))
    assert task.messages == (SYSTEM, {"role": "user", "content": "1+1?"})
    assert task.answer == "2"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"role": "user"}, r"a\.jsonl:1: field 'prompt' holds dict; a prompt is text or a list"),
        (7, "holds int"),
        ([], "has no messages"),
        ([{"role": "bot", "content": "x"}], r"field 'prompt'\[0\] has role 'bot'"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "ends with a message of"),
    ],
)
def test_a_prompt_that_is_none_is_refused_with_its_line(tmp_path: Path, prompt: Any, message: str) -> None:
    with pytest.raises(RowError, match=message):
        read(write(tmp_path / "a.jsonl", {"prompt": prompt, "answer": "2"}))


def test_one_question_is_held_out_everywhere_or_nowhere_whatever_its_system_message(tmp_path: Path) -> None:
    texts = [f"What is {n} + {n}?" for n in range(60)]
    plain = read(write(tmp_path / "a.jsonl", *({"prompt": t, "answer": ""} for t in texts)), heldout=0.3)
    chats = [[SYSTEM, {"role": "user", "content": text}] for text in texts]
    asked = read(write(tmp_path / "b.jsonl", *({"prompt": c, "answer": ""} for c in chats)), heldout=0.3)
    splits = [task.split for task in plain]
    assert 5 < splits.count(Split.HELDOUT) < 40
    assert [task.split for task in asked] == splits
    assert [prompt_share(t.messages) < 0.3 for t in asked] == [split == "heldout" for split in splits]


def test_other_columns_of_a_file_are_metadata_for_rewards(tmp_path: Path) -> None:
    row = {"prompt": "p", "answer": ["a", "b"], "tests": ["assert f(1) == 2"], "level": 3, "nothing": None}
    path = write(tmp_path / "a.jsonl", row)
    [task] = read(path)
    assert task.metadata == {"tests": ["assert f(1) == 2"], "level": 3}
    assert task.answer == '["a", "b"]'
    assert read(path, metadata=["level"])[0].metadata == {"level": 3}
    assert read(path, metadata=[], answer=None)[0].metadata == {}
    assert read(path, answer=None)[0].answer is None


def test_a_parquet_file_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1\xff\xfe\x00")
    with pytest.raises(RowError, match=r"a\.parquet: .* it is a Parquet file\. .*use: file"):
        read(path)
    path.write_text('{"prompt": "p", "answer": NaN}')
    with pytest.raises(RowError, match="NaN is not JSON"):
        read(path)


@pytest.mark.parametrize("line", ['{"prompt": 1', '  {"prompt" 1}', '{"prompt": "p", "prompt": "q"}', "[1]"])
def test_a_bad_line_is_named_as_imports_name_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n")
    [found] = read_json(path)
    with pytest.raises(RowError, match=re.escape(f"{path}:1: {found.reason}.")):
        read(path)


@pytest.mark.slow
def test_imported_tasks_feed_a_run_that_reads_the_same_ones_when_it_goes_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", *({"question": f"{n}?", "answer": f"#### {n}", "n": n} for n in range(40))
    )
    with Buffer(tmp_path / "buffer") as buffer:
        with pytest.raises(RecipeError, match="no tasks of that name; it has none at all"):
            stored_tasks(buffer, "mine", heldout=0.0)
        import_into(buffer, path, format="gsm8k", taskset="mine")
        tasks = stored_tasks(buffer, "mine", heldout=0.25, run="r")
        assert len(tasks) == 40
        assert tasks[3].metadata["n"] == 3
        chosen = {"where": "n >= 30 and answer <> '39' and prompt like '%?'", "shuffle": 1, "limit": 5}
        some = stored_tasks(buffer, "mine", heldout=0.0, choice=StoredTasks(use="stored", **chosen))
        numbers = [task.metadata["n"] for task in some]
        assert len(set(numbers) & set(range(30, 39))) == 5
        assert numbers != sorted(numbers)
        assert {task.split for task in tasks} == {"train", "heldout"}
        run = {"run_id": "r", "recipe": {}, "recipe_hash": "h", "code_version": "1", "attempt": 0}
        buffer.add_rows("runs", [run])
        made = Task("mine", ({"role": "user", "content": "edited"},), "1")
        buffer.add_tasks([made])
        assert stored_tasks(buffer, "mine", heldout=0.25, run="r") == tasks
        assert len(stored_tasks(buffer, "mine", heldout=0.25, run="another")) == 41
