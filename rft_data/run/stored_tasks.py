"""Tasks of a run that its buffer holds already: imported, or stored by an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.codec import to_tasks
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.core.heldout import prompt_share
from rft_data.core.rows import Task
from rft_data.core.words import Split
from rft_data.recipe.task_sources import StoredTasks
from rft_data.tasks.row_choice import chosen_rows
from rft_data.tasks.table import prompt_text

_ALL = StoredTasks(use="stored")


def stored_tasks(
    buffer: Buffer, taskset: str, *, heldout: float, run: str = "", choice: StoredTasks = _ALL
) -> list[Task]:
    """The stored tasks of a taskset that a recipe chooses, in the order stored or shuffled.

    Tasks that were made of others while a run went on are left out, as are those stored since the run
    `run` began: a run that is continued reads what it read at first.
    Args: heldout: share held out by content hash, beside the tasks that were stored as held out.
    Raises: RecipeError naming the tasksets there are, when there is no such task.
    """
    table = buffer.read("tasks", None, Compare("taskset", "eq", taskset))
    begun = buffer.read("runs", ["created_at"], Compare("run_id", "eq", run))["created_at"]
    if len(begun):
        table = table.filter(pc.less(table["created_at"], pc.min(begun)))
    tasks = [task for task in to_tasks(table) if task.parent_experience_id is None]
    if not tasks:
        known = sorted(set(buffer.read("tasks", ["taskset"])["taskset"].to_pylist()))
        raise RecipeError(
            f"taskset '{taskset}' has source 'stored', and the buffer has no tasks of that name; it has "
            f"{', '.join(known) or 'none at all'}. Bring tasks in with: rft buffer import BUFFER FILE "
            f"--taskset {taskset}"
        )
    placed = [(task.task_id, _columns(task)) for task in tasks]
    by_id = {task.task_id: task for task in tasks}
    rows = chosen_rows(placed, where=choice.where, shuffle=choice.shuffle, limit=choice.limit)
    return list(_split([by_id[task_id] for task_id, _ in rows], heldout))


def _columns(task: Task) -> dict[str, object]:
    """The fields of a task that a condition may read."""
    own = {
        "task_id": task.task_id,
        "prompt": prompt_text(task.messages),
        "answer": task.answer,
        "split": str(task.split),
        "difficulty": task.difficulty,
    }
    return {**task.metadata, **own}


def _split(tasks: list[Task], heldout: float) -> Iterator[Task]:
    for task in tasks:
        held = task.split == Split.HELDOUT or prompt_share(task.messages) < heldout
        yield replace(task, split=Split.HELDOUT) if held else task
