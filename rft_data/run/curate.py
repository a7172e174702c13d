"""Data runs: load tasks, clean them, store somebody's rollouts and score them. No model is involved."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.files import write_text
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import Split
from rft_data.recipe.modes import DataRecipe, OnlineRecipe, TasksRecipe
from rft_data.recipe.sections import RlStage, TaskUpkeep
from rft_data.run.build import prepare_process, task_pipeline, tasks_of
from rft_data.run.score_file import Scorer
from rft_data.tasks.curator import TaskCurator
from rft_data.tasks.record import played
from rft_data.tasks.selectors.base import OpenSelector
from rft_data.tasks.synthesis import make_synthesis
from rft_data.tasks.table import edited_tasks, task_table, with_played

log = logging.getLogger(__name__)

_DECONTAMINATION = "task_decontamination_filter"


def curate(recipe: DataRecipe) -> dict[str, Any]:
    """Run a data recipe; returns the report, also written beside the buffer as `NAME.report.json`.

    Operators that look at a task's record see the rollouts that were stored before this run.
    """
    prepare_process()
    read = [task for section in recipe.tasks for task in tasks_of(section)]
    tasks = list({task.key: task for task in read}.values())
    log.info("%d tasks read, %d of them repeated", len(read), len(read) - len(tasks))
    with ExitStack() as opened:
        scorer = opened.enter_context(closing(Scorer(recipe))) if recipe.rollouts else None
        buffer = opened.enter_context(Buffer(recipe.buffer.uri, durability=recipe.buffer.durability))
        kept, operators = clean_tasks(tasks, recipe, buffer)
        report: dict[str, Any] = {
            "name": recipe.name,
            "tasks_read": len(read),
            "tasks_repeated": len(read) - len(tasks),
            "tasks_kept": len(kept),
            "tasksets": by_taskset(read, kept, operators),
            "operators": operators,
            "contaminated": [
                lost
                for op in operators
                if op["operator"].startswith(_DECONTAMINATION)
                for lost in op["dropped"]
            ],
        }
        report["tasks_new"] = buffer.add_tasks(kept)
        report["rollouts"] = [
            scorer.score_file(section, kept, buffer) for section in recipe.rollouts if scorer is not None
        ]
        report["buffer_rows"] = {name: n for name, n in buffer.counts().items() if n}
    path = Path(f"{recipe.buffer.uri}.report.json")
    report["report"] = str(path)
    write_text(path, json.dumps(report, indent=1))
    return report


def clean_tasks(
    tasks: Sequence[Task], recipe: TasksRecipe, buffer: Buffer | None = None
) -> tuple[list[Task], list[dict[str, Any]]]:
    """Run `task_ops` over the prompts; returns kept tasks and, per operator, what it dropped and why.

    A mapper's edit makes a new task with the edited prompt. Tasks are in their old order, or by falling
    `priority` where an operator gave them one.
    Args: buffer: where the tasks' stored rollouts are; None: no task was ever played.
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
        with closing(task_pipeline(recipe, part, "task_ops", buffer)) as pipeline:
            verdicts = pipeline.run_tasks(table)
        reports += [_reported(report, kept) for report in verdicts.reports]
        kept = edited_tasks(kept, verdicts.kept.tolist(), verdicts.table)
        table, kept = _once(verdicts.table, kept)
    return _ordered(table, kept), reports


def curator_of(
    recipe: OnlineRecipe,
    upkeep: TaskUpkeep,
    selector: OpenSelector,
    tasks: dict[TaskKey, Task],
    heldout: Sequence[Task],
    buffer: Buffer,
) -> TaskCurator:
    """The selector of a run whose tasks are curated as it goes on; `tasks`: the dispatcher's, to be added to.

    New tasks pass `task_ops` beside the held-out ones; one that is itself held out is never let in. Close it.
    Raises: RecipeError, UnknownComponentError.
    """

    barred = {task.key for task in heldout}

    def admit(new: Sequence[Task]) -> list[Task]:
        kept, _ = clean_tasks([*heldout, *new], recipe, buffer)
        return [task for task in kept if task.split == Split.TRAIN and task.key not in barred]

    made, last = upkeep.synthesis, recipe.stages[-1]
    return TaskCurator(
        buffer=buffer,
        run_id=recipe.name,
        selector=selector,
        tasks=tasks,
        pipeline=task_pipeline(recipe, upkeep.ops, "task_upkeep.ops", buffer),
        every=upkeep.every,
        least_playable=last.groups_per_step if isinstance(last, RlStage) else 1,
        synthesis=None if made is None else make_synthesis(**made.model_dump()),
        admit=admit,
        seed=recipe.seed,
    )


def by_taskset(
    read: Sequence[Task], kept: Sequence[Task], operators: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Tasks of each taskset: read, kept (by split), and dropped or quarantined by operator."""
    counts: dict[str, dict[str, Any]] = {
        name: {"read": n, "kept": 0, Split.TRAIN: 0, Split.HELDOUT: 0, "lost": {}}
        for name, n in Counter(task.taskset for task in read).items()
    }
    for task in kept:
        counts[task.taskset]["kept"] += 1
        counts[task.taskset][task.split] += 1
    for op in operators:
        for name, n in Counter(lost["taskset"] for lost in (*op["dropped"], *op["quarantined"])).items():
            counts[name]["lost"][op["operator"]] = n
    return counts


def _parts(operators: Sequence[Mapping[str, Any]]) -> list[tuple[list[Any], bool]]:
    """The operators, cut before each that reads tasks' ids or records, which mappers before it may change.

    With each part, whether its first operator reads records.
    """
    from ops.runtime.hygiene import registry

    parts: list[tuple[list[Any], bool]] = []
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


def _reported(report: Any, tasks: Sequence[Task]) -> dict[str, Any]:
    return {
        "operator": report.name,
        "rows_in": report.rows_in,
        "rows_out": report.rows_out,
        "seconds": round(report.seconds, 3),
        "dropped": _lost(report.dropped, tasks),
        "quarantined": _lost(report.quarantined, tasks),
    }


def _lost(rows: Mapping[int, str], tasks: Sequence[Task]) -> list[dict[str, str]]:
    return [
        {"taskset": tasks[row].taskset, "task_id": tasks[row].task_id, "reason": why}
        for row, why in rows.items()
    ]


def report_text(report: dict[str, Any]) -> str:
    """The report for people: tasks by taskset and operator, contamination, rollouts, disagreements by id."""
    lines = [
        f"tasks read {report['tasks_read']}, repeated {report['tasks_repeated']}, "
        f"kept {report['tasks_kept']}, new in the buffer {report['tasks_new']}"
    ]
    for name, n in report["tasksets"].items():
        lines.append(
            f"  taskset {name:<26} read {n['read']:>6}  kept {n['kept']:>6}"
            f"  (train {n['train']}, held out {n['heldout']})"
        )
    for op in report["operators"]:
        quarantined = f", quarantined {len(op['quarantined'])}" if op["quarantined"] else ""
        lines.append(
            f"  {op['operator']:<34} in {op['rows_in']:>6}  out {op['rows_out']:>6}{quarantined}"
            f"  {op['seconds']:.2f} s"
        )
    lines += [f"  contaminated: {hit['task_id']} {hit['reason']}" for hit in report["contaminated"]]
    for rollouts in report["rollouts"]:
        lines += _rollout_lines(rollouts)
    return "\n".join([*lines, f"report    {report['report']}"])


def _rollout_lines(rollouts: Mapping[str, Any]) -> list[str]:
    lines = [
        f"rollouts '{rollouts['name']}': {rollouts['scored']} scored, {rollouts['unscored']} unscored, "
        f"{rollouts['no_task']} without a task, "
        f"{rollouts['stored']} new in the buffer, {rollouts['quarantined']} quarantined"
    ]
    if rollouts["agreement"] is not None:
        lines.append(
            f"  reward agrees with the file's own labels on {rollouts['agree']} of "
            f"{rollouts['agree'] + rollouts['disagree']} ({100 * rollouts['agreement']:.2f} %)"
        )
    return lines + [
        f"  differs: {d['experience_id']} line {d['line']} {d['completion']}: label {d['label']}, "
        f"reward {d['reward']}, ends {d['ends']!r}"
        for d in rollouts["disagreements"]
    ]
