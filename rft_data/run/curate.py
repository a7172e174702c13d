"""Data runs: load and clean tasks, store and score rollouts that others made. No model is involved."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.files import write_text
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.words import Split
from rft_data.placement.ray import connect
from rft_data.recipe.modes import DataRecipe
from rft_data.run.build import prepare_process, taskset_tasks
from rft_data.run.occupied import check_free
from rft_data.run.score_file import Scorer
from rft_data.run.task_setup import clean_tasks

log = logging.getLogger(__name__)

_DECONTAMINATION = "task_decontamination_filter"


def curate(recipe: DataRecipe) -> dict[str, object]:
    """Run a data recipe; returns the report, also written beside the buffer as `NAME.report.json`.

    Operators that look at a task's record see the rollouts that were stored before this run.
    """
    prepare_process()
    check_free(recipe.buffer.uri)
    with ExitStack() as opened:
        scorer = opened.enter_context(closing(Scorer(recipe))) if recipe.rollouts else None
        buffer = opened.enter_context(Buffer(recipe.buffer.uri, durability=recipe.buffer.durability))
        read = [task for section in recipe.tasks for task in taskset_tasks(section, buffer)]
        tasks = list({task.key: task for task in read}.values())
        log.info("%d tasks read, %d of them repeated", len(read), len(read) - len(tasks))
        kept, operators = clean_tasks(tasks, recipe, buffer, _spread(recipe, opened))
        report: dict[str, object] = {
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


def _spread(recipe: DataRecipe, opened: ExitStack) -> int:
    """Join the recipe's cluster until `opened` closes; how many tasks may run there at a time (0: none).

    Raises: MissingExtraError without Ray; RftError if no cluster answers.
    """
    place = recipe.placement
    if place.use != "ray":
        return 0
    ray = need("ray", "ray", "placement 'ray'")
    if connect(place.address):
        opened.callback(ray.shutdown)
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < 1:
        raise RecipeError(
            "the Ray cluster has no CPU for operators; add nodes, or run with placement.use=local."
        )
    return min(cpus, place.workers or cpus)


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
        f"  differs: {d['experience_id']} {d['place']} {d['completion']}: label {d['label']}, "
        f"reward {d['reward']}, ends {d['ends']!r}"
        for d in rollouts["disagreements"]
    ]
