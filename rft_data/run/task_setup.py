"""The tasks of a run: read from the recipe's sources, cleaned by `task_ops`, and curated as a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import Split
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import TasksRecipe
from rft_data.recipe.sections import ExplorerSection, Operators, TaskUpkeep
from rft_data.run.build import store_task_images, task_pipeline, taskset_tasks
from rft_data.run.parts import Tasks
from rft_data.tasks.curator import TaskCurator
from rft_data.tasks.record import played
from rft_data.tasks.selectors.interfaces import OpenSelector
from rft_data.tasks.synthesis import make_synthesis
from rft_data.tasks.table import edited_tasks, task_table, with_played

if TYPE_CHECKING:
    from ops.runtime.annotations import OperatorReport

log = logging.getLogger(__name__)


class LostTask(TypedDict):
    """A task that an operator dropped or failed on."""

    taskset: str
    task_id: str
    reason: str


class TaskOperator(TypedDict):
    """The report of one operator of `task_ops`, as JSON values."""

    operator: str
    rows_in: int
    rows_out: int
    seconds: float
    dropped: list[LostTask]
    quarantined: list[LostTask]


def read_tasks(recipe: ExplorerRecipe, needed: Sequence[str], buffer: Buffer) -> Tasks:
    """The recipe's tasks, each once, cleaned by `task_ops`.

    Args: buffer: what earlier runs stored of them, for operators that look at it.
    Raises: RecipeError when none is left of a split in `needed`.
    """
    read = [task for section in recipe.tasks for task in taskset_tasks(section, buffer, recipe.name)]
    distinct = list({task.key: task for task in read}.values())
    store_task_images(recipe.tasks, buffer)
    tasks, operators = clean_tasks(distinct, recipe, buffer)
    check_known_code(recipe.explorer, tasks)
    splits = {str(split): sum(task.split == split for task in tasks) for split in Split}
    log.info("%d tasks read, %d kept: %s", len(read), len(tasks), splits)
    for split in needed:
        if splits[split] == 0:
            raise RecipeError(
                f"no task of split '{split}' is left of the {len(read)} read; set 'heldout' of a taskset "
                "between 0 and 1, and look at what 'task_ops' drops."
            )
    report = {"read": len(read), "kept": len(tasks), **splits, "operators": operators}
    return Tasks(tasks, report)


def check_known_code(explorer: ExplorerSection, tasks: Sequence[Task]) -> None:
    """Raises: RecipeError when a task asks for a workflow or reward the recipe lacks; data names no code."""
    rewards = {component.stored_as for component in explorer.reward}
    if lacking := sorted({task.reward for task in tasks if task.reward} - rewards):
        raise RecipeError(
            f"tasks ask for the rewards {lacking}, 'explorer.reward' has {sorted(rewards)}; add them there."
        )
    known = {explorer.workflow.use, *explorer.workflows}
    if other := sorted({task.workflow for task in tasks if task.workflow} - known):
        raise RecipeError(
            f"tasks ask for the workflows {other}, the recipe has {sorted(known)}; add them to "
            "'explorer.workflows'."
        )


def clean_tasks(
    tasks: Sequence[Task], recipe: TasksRecipe, buffer: Buffer | None = None, spread: int = 0
) -> tuple[list[Task], list[TaskOperator]]:
    """Run `task_ops` over the prompts; returns kept tasks and, per operator, what it dropped and why.

    A mapper's edit makes a new task with the edited prompt. Tasks are in their old order, or by falling
    `priority` where an operator gave them one.
    Args:
        buffer: where the tasks' stored rollouts are; None: no task was ever played.
        spread: tasks of Ray Data that run at a time, on the cluster that this process has joined; 0: none.
    Raises: RecipeError when a prompt of several messages was edited, which one text cannot tell apart.
    """
    # operators are found through Data-Juicer, which reading a recipe must not load
    from ops.runtime.specs import parse

    parse(recipe.task_ops, "task_ops", allow_unsafe=recipe.allow_unsafe_ops)
    kept, reports = list(tasks), []
    table = task_table(kept)
    for part, needs_record in _parts(recipe.task_ops):
        if needs_record and buffer is not None:
            table = with_played(table, played(buffer))
        with closing(task_pipeline(recipe, part, "task_ops", buffer, spread)) as pipeline:
            verdicts = pipeline.run_tasks(table)
        reports += [_reported(report, kept) for report in verdicts.reports]
        kept = edited_tasks(kept, verdicts.kept.tolist(), verdicts.table)
        table, kept = _once(verdicts.table, kept)
    return _ordered(table, kept), reports


def task_curator(
    recipe: OnlineRecipe,
    upkeep: TaskUpkeep,
    selector: OpenSelector,
    tasks: dict[TaskKey, Task],
    heldout: Sequence[Task],
    buffer: Buffer,
) -> TaskCurator:
    """The selector of a run whose tasks are curated as it goes on; to be closed by the caller.

    `task_ops` judge new tasks together with the held-out ones; a new task that is held out is left out.
    Args: tasks: those of the dispatcher; new tasks are added to it.
    Raises: RecipeError, UnknownComponentError.
    """

    barred = {task.key for task in heldout}

    def admit(new: Sequence[Task]) -> list[Task]:
        kept, _ = clean_tasks([*heldout, *new], recipe, buffer)
        return [task for task in kept if task.split == Split.TRAIN and task.key not in barred]

    made = upkeep.synthesis
    return TaskCurator(
        buffer=buffer,
        run_id=recipe.name,
        selector=selector,
        tasks=tasks,
        pipeline=task_pipeline(recipe, upkeep.ops, "task_upkeep.ops", buffer),
        every=upkeep.every,
        least_playable=recipe.rl.groups_per_step,
        synthesis=None if made is None else make_synthesis(**made.model_dump()),
        admit=admit,
        seed=recipe.seed,
    )


def _parts(operators: Operators) -> list[tuple[Operators, bool]]:
    """The operators, split before each that reads tasks' ids or records: mappers before it may change these.

    With each part, whether its first operator reads records.
    """
    from ops.runtime.hygiene import registry

    parts: list[tuple[Operators, bool]] = []
    for entry in operators:
        operator = registry().modules[next(iter(entry))]
        needs = getattr(operator, "required_columns", ())
        if not parts or "task_id" in needs or "played_age" in needs:
            parts.append(([], "played_age" in needs))
        parts[-1][0].append(entry)
    return parts


def _once(table: pa.Table, tasks: list[Task]) -> tuple[pa.Table, list[Task]]:
    """Each task once (edits may have made two the same), and the table with their present ids."""
    first = list({task.key: place for place, task in reversed(list(enumerate(tasks)))}.values())[::-1]
    table = table.take(pa.array(first, pa.int64()))
    tasks = [tasks[place] for place in first]
    ids = pa.array([task.task_id for task in tasks], pa.string())
    return table.set_column(table.column_names.index("task_id"), "task_id", ids), tasks


def _ordered(table: pa.Table, tasks: list[Task]) -> list[Task]:
    if "priority" not in table.column_names:
        return tasks
    order = np.argsort(-table["priority"].to_numpy(), kind="stable")
    return [tasks[place] for place in order]


def _reported(report: OperatorReport, tasks: Sequence[Task]) -> TaskOperator:
    return {
        "operator": report.name,
        "rows_in": report.rows_in,
        "rows_out": report.rows_out,
        "seconds": round(report.seconds, 3),
        "dropped": _lost(report.dropped, tasks),
        "quarantined": _lost(report.quarantined, tasks),
    }


def _lost(rows: Mapping[int, str], tasks: Sequence[Task]) -> list[LostTask]:
    return [
        {"taskset": tasks[row].taskset, "task_id": tasks[row].task_id, "reason": why}
        for row, why in rows.items()
    ]
