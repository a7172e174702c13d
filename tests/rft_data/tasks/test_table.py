"""Tasks to rows and back: what operators may edit comes back, everything else stays."""

import json

import pyarrow as pa
import pytest

from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.tasks.table import edited_tasks, task_table
from tests.rft_data.tasks.conftest import make_tasks


def replaced(table: pa.Table, name: str, values: list) -> pa.Table:
    return table.set_column(
        table.column_names.index(name), name, pa.array(values, table.schema.field(name).type)
    )


def dialogue() -> Task:
    return Task(
        "chat",
        ({"role": "system", "content": "Be brief."}, {"content": "Why?", "role": "user"}),
        None,
        difficulty=2.0,
        metadata={"level": 3},
        tags=("x",),
    )


def test_unedited_tasks_come_back_as_they_were():
    tasks = [*make_tasks(2), dialogue()]
    table = task_table(tasks)
    assert table["text"][2].as_py() == "Be brief.\nWhy?"
    assert edited_tasks(tasks, [0, 1, 2], table) == tasks
    assert list(edited_tasks(tasks, [0, 1, 2], table)[2].messages[1]) == ["content", "role"]
    assert edited_tasks(tasks, [2], table.slice(2)) == tasks[2:]


def test_edited_text_messages_and_difficulty_reach_the_task():
    [task, other] = make_tasks(2)
    table = replaced(task_table([task, other]), "text", ["What?", other.messages[0]["content"]])
    table = replaced(table, "difficulty", [None, 0.5])
    edited = edited_tasks([task, other], [0, 1], table)
    assert edited[0].messages == ({"role": "user", "content": "What?"},)
    assert edited[0].task_id != task.task_id
    assert (edited[1].task_id, edited[1].difficulty) == (other.task_id, 0.5)
    talk = dialogue()
    messages = [{"role": "system", "content": "Be brief!"}, {"role": "user", "content": "Why?"}]
    table = replaced(task_table([talk]), "messages", [json.dumps(messages)])
    table = replaced(table, "text", ["Be brief!\nWhy?"])
    assert edited_tasks([talk], [0], table)[0].messages == tuple(messages)


def test_the_difficulty_a_task_was_loaded_with_is_kept():
    tasks = [dialogue(), *make_tasks(1)]
    for levels in ([0.5, 0.75], [0.25, None]):
        tasks = edited_tasks(tasks, [0, 1], replaced(task_table(tasks), "difficulty", levels))
        assert [task.difficulty for task in tasks] == levels
        assert task_table(tasks)["offline_difficulty"].to_pylist() == [2.0, None]
    assert tasks[0].tags == ("x", "offline_difficulty:2.0")


def test_editing_the_text_of_several_messages_is_refused():
    table = replaced(task_table([dialogue()]), "text", ["Be brief. Why?"])
    with pytest.raises(RecipeError, match="which has 2 messages"):
        edited_tasks([dialogue()], [0], table)
