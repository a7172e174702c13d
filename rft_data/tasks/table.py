"""Converts tasks to the table that task operators work on, and back: one row per task.

Operators may edit `text` (the prompt as one text), `messages` and `difficulty`, and add columns of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.errors import RecipeError
from rft_data.core.rows import Message, Task
from rft_data.core.words import Split
from rft_data.tasks.record import PLAYED

_OFFLINE = "offline_difficulty:"
"""Tag of a task whose difficulty an operator changed, before the JSON of the one it was loaded with."""

_SCHEMA = pa.schema(
    [
        pa.field("taskset", pa.string()),
        pa.field("task_id", pa.string()),
        pa.field("text", pa.string()),
        pa.field("messages", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("split", pa.string()),
        pa.field("difficulty", pa.float64()),
        pa.field("offline_difficulty", pa.float64()),
    ]
)


def prompt_text(messages: Iterable[Message]) -> str:
    """The contents of a prompt's messages, joined with line breaks."""
    return "\n".join(_text(message["content"]) for message in messages)


def _text(content: object) -> str:
    """The text of a message's content; of a list of parts, the texts of these joined."""
    if not isinstance(content, list | tuple):
        return str(content)
    return "".join(str(part["text"]) for part in content if part.get("type") == "text")


def task_table(tasks: Sequence[Task], record: pa.Table | None = None) -> pa.Table:
    """`taskset`, `task_id`, `text`, `messages` (JSON), `answer`, `split`, `difficulty`, PLAYED's columns.

    Also `offline_difficulty`: the difficulty a task was loaded with, even if operators changed it since.
    Args: record: the table that `played` returns; None: no task was ever played.
    """
    columns: dict[str, list[object]] = {
        "taskset": [task.taskset for task in tasks],
        "task_id": [task.task_id for task in tasks],
        "text": [prompt_text(task.messages) for task in tasks],
        "messages": [_json(task.messages) for task in tasks],
        "answer": [task.answer for task in tasks],
        "split": [task.split for task in tasks],
        "difficulty": [task.difficulty for task in tasks],
        "offline_difficulty": [_offline(task) for task in tasks],
    }
    return with_played(pa.table(columns, schema=_SCHEMA), record)


def with_played(table: pa.Table, record: pa.Table | None) -> pa.Table:
    """`table` (with `taskset` and `task_id`) with its tasks' record in the columns of PLAYED."""
    rest = table.drop_columns([name for name in PLAYED.names if name in table.column_names])
    if record is None:
        nothing = pa.table([pa.nulls(table.num_rows, field.type) for field in PLAYED], schema=PLAYED)
        return pa.table({**_columns(rest), **_columns(nothing)})
    place = pc.index_in(_keys(rest), value_set=_keys(record).combine_chunks())
    return pa.table({**_columns(rest), **{name: record[name].take(place) for name in PLAYED.names}})


def edited_tasks(tasks: Sequence[Task], kept: Sequence[int], after: pa.Table) -> list[Task]:
    """The kept tasks with the prompt and difficulty that operators edited; a new prompt gives a new task id.

    Args: kept: index into `tasks` of each row of `after`. after: the table after the operators.
    Raises: RecipeError when the one text of a prompt of several messages was edited.
    """
    edited = []
    columns = (after[name].to_pylist() for name in ("messages", "text", "difficulty"))
    for place, messages, text, difficulty in zip(kept, *columns, strict=True):
        task = tasks[place]
        same = messages == _json(task.messages)
        prompt = _with_text(task.messages if same else tuple(json.loads(messages)), text, task.task_id)
        tags = task.tags
        if difficulty != task.difficulty and not any(tag.startswith(_OFFLINE) for tag in tags):
            tags = (*tags, f"{_OFFLINE}{json.dumps(task.difficulty)}")
        edited.append(replace(task, messages=prompt, difficulty=difficulty, tags=tags))
    return edited


def _offline(task: Task) -> float | None:
    found = [tag.removeprefix(_OFFLINE) for tag in task.tags if tag.startswith(_OFFLINE)]
    loaded: float | None = json.loads(found[0]) if found else task.difficulty
    return loaded


def _with_text(messages: tuple[Message, ...], text: str, task_id: str) -> tuple[Message, ...]:
    if prompt_text(messages) == text:
        return messages
    if len(messages) != 1:
        raise RecipeError(
            f"'task_ops' edited the prompt of task '{task_id}', which has {len(messages)} "
            "messages; mappers that edit text work on single-message prompts only."
        )
    content = messages[0]["content"]
    if isinstance(content, list | tuple):
        shown = [part for part in content if part.get("type") != "text"]
        return ({**messages[0], "content": [*shown, {"type": "text", "text": text}]},)
    return ({**messages[0], "content": text},)


def _json(messages: Iterable[Message]) -> str:
    # keys stay in their order: a chat template may render them
    return json.dumps([dict(message) for message in messages], ensure_ascii=False)


def _columns(table: pa.Table) -> dict[str, object]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _keys(table: pa.Table) -> pa.ChunkedArray:
    """(taskset, task_id) joined as one string."""
    return pc.binary_join_element_wise(table["taskset"], table["task_id"], "\x00")


def held_out(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row is a held-out task; false for all without a column `split`."""
    if "split" not in table.column_names:
        return np.zeros(table.num_rows, bool)
    found: npt.NDArray[np.bool_] = np.asarray(table["split"].to_pylist(), object) == Split.HELDOUT
    return found
