"""Data runs: load tasks, clean them, store somebody's rollouts and score them. No model is involved."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.build import prepare_process, task_pipeline, tasks_of
from rft_data.errors import RecipeError
from rft_data.manifest import write_text
from rft_data.recipe.modes import DataRecipe, TasksRecipe
from rft_data.rows import Task
from rft_data.scorer import Scorer

log = logging.getLogger(__name__)


def curate(recipe: DataRecipe) -> dict[str, Any]:
    """Run a data recipe; returns the report, also written beside the buffer as `NAME.report.json`."""
    prepare_process()
    read = [task for section in recipe.tasks for task in tasks_of(section)]
    tasks = list({task.key: task for task in read}.values())
    log.info("%d tasks read, %d of them repeated", len(read), len(read) - len(tasks))
    kept, operators = clean_tasks(tasks, recipe)
    report: dict[str, Any] = {
        "name": recipe.name,
        "tasks_read": len(read),
        "tasks_repeated": len(read) - len(tasks),
        "tasks_kept": len(kept),
        "operators": operators,
    }
    with ExitStack() as opened:
        scorer = opened.enter_context(closing(Scorer(recipe))) if recipe.rollouts else None
        buffer = opened.enter_context(Buffer(recipe.buffer.uri, durability=recipe.buffer.durability))
        report["tasks_new"] = buffer.add_tasks(kept)
        report["rollouts"] = [
            scorer.score_file(section, kept, buffer) for section in recipe.rollouts if scorer is not None
        ]
        report["buffer_rows"] = {name: n for name, n in buffer.counts().items() if n}
    path = Path(f"{recipe.buffer.uri}.report.json")
    report["report"] = str(path)
    write_text(path, json.dumps(report, indent=1))
    return report


def clean_tasks(tasks: Sequence[Task], recipe: TasksRecipe) -> tuple[list[Task], list[dict[str, Any]]]:
    """Run `task_ops` over the prompts; returns kept tasks and, per operator, what it dropped and why.

    A mapper's edit makes a new task with the edited prompt.
    Raises: RecipeError when a prompt of several messages was edited, which one text cannot tell apart.
    """
    if not recipe.task_ops:
        return list(tasks), []
    texts = ["\n".join(str(message["content"]) for message in task.messages) for task in tasks]
    table = pa.table({"task_id": [task.task_id for task in tasks], "text": texts})
    verdicts = task_pipeline(recipe).run_tasks(table)
    reports = [
        {
            "operator": report.name,
            "rows_in": report.rows_in,
            "rows_out": report.rows_out,
            "seconds": round(report.seconds, 3),
            "dropped": [{"task_id": tasks[i].task_id, "reason": why} for i, why in report.dropped.items()],
            "quarantined": [
                {"task_id": tasks[i].task_id, "reason": why} for i, why in report.quarantined.items()
            ],
        }
        for report in verdicts.reports
    ]
    edited = verdicts.table.column("text").to_pylist()
    kept = [_edited(tasks[i], texts[i], text) for i, text in zip(verdicts.kept, edited, strict=True)]
    return list({task.key: task for task in kept}.values()), reports


def _edited(task: Task, before: str, after: str) -> Task:
    if before == after:
        return task
    if len(task.messages) != 1:
        raise RecipeError(
            f"'task_ops' edited the prompt of task '{task.task_id}', which has {len(task.messages)} "
            "messages; mappers work on single-message prompts only."
        )
    return replace(task, messages=({**task.messages[0], "content": after},))


def report_text(report: dict[str, Any]) -> str:
    """The report for people: tasks by operator, rollouts, every disagreement by id."""
    lines = [
        f"tasks read {report['tasks_read']}, repeated {report['tasks_repeated']}, "
        f"kept {report['tasks_kept']}, new in the buffer {report['tasks_new']}"
    ]
    for op in report["operators"]:
        quarantined = f", quarantined {len(op['quarantined'])}" if op["quarantined"] else ""
        lines.append(
            f"  {op['operator']:<34} in {op['rows_in']:>6}  out {op['rows_out']:>6}{quarantined}"
            f"  {op['seconds']:.2f} s"
        )
    for rollouts in report["rollouts"]:
        lines.append(
            f"rollouts '{rollouts['name']}': {rollouts['scored']} scored, {rollouts['unscored']} unscored, "
            f"{rollouts['no_task']} without a task, "
            f"{rollouts['stored']} new in the buffer, {rollouts['quarantined']} quarantined"
        )
        if rollouts["agreement"] is not None:
            lines.append(
                f"  reward agrees with the file's own labels on {rollouts['agree']} of "
                f"{rollouts['agree'] + rollouts['disagree']} ({100 * rollouts['agreement']:.2f} %)"
            )
        lines += [
            f"  differs: {d['experience_id']} line {d['line']} {d['completion']}: label {d['label']}, "
            f"reward {d['reward']}, ends {d['ends']!r}"
            for d in rollouts["disagreements"]
        ]
    return "\n".join([*lines, f"report    {report['report']}"])
