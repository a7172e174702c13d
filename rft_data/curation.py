"""Data runs: load tasks, clean them, store somebody's rollouts and score them. No model is involved."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from explorers.single_turn import score
from rft_data.buffer import Buffer
from rft_data.build import prepare_process, rewards_of, task_pipeline, tasks_of
from rft_data.protocols import Reward
from rft_data.recipe.sections import DataRecipe, Recipe, Rollouts, StoredCompletions
from rft_data.rows import Experience, Task, experience_id_of
from rft_data.sources import make_task, pick, read_jsonl

log = logging.getLogger(__name__)

_BATCH = 512


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
    }
    report["operators"] = operators
    with Buffer(Path(recipe.buffer.uri)) as buffer:
        report["tasks_new"] = buffer.add_tasks(kept)
        rewards = rewards_of(recipe.reward) if recipe.rollouts else {}
        report["rollouts"] = [
            score_rollouts(section, rewards, recipe.name, buffer) for section in recipe.rollouts
        ]
        report["buffer_rows"] = {name: n for name, n in buffer.counts().items() if n}
    path = Path(f"{recipe.buffer.uri}.report.json")
    path.write_text(json.dumps(report, indent=1))
    report["report"] = str(path)
    return report


def clean_tasks(tasks: Sequence[Task], recipe: Recipe) -> tuple[list[Task], list[dict[str, Any]]]:
    """Run `task_ops` over the prompts; returns kept tasks and, per operator, what it dropped and why."""
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
    return [tasks[i] for i in verdicts.kept], reports


def score_rollouts(
    section: Rollouts, rewards: dict[str, tuple[Reward, float]], run_id: str, buffer: Buffer
) -> dict[str, Any]:
    """Store a file's rollouts as experiences of source `import`, scored; compare with its own labels.

    Reward is the weighted sum of the components; where labels are given, reward >= 0.5 of the total
    weight is read as "correct".
    """
    path = Path(section.source.path)
    outcome: Counter[str] = Counter()
    disagreements: list[dict[str, Any]] = []
    batch: list[Experience] = []
    total = sum(weight for _, weight in rewards.values())
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        question, answer = (str(pick(row, field, where)) for field in (section.prompt, section.answer))
        task = make_task(section.name, question, answer, None, 1.0)
        for member, column in enumerate(section.completions):
            experience = _imported(task, str(pick(row, column.text, where)), column, member, rewards, run_id)
            batch.append(experience)
            outcome["scored" if experience.reward is not None else "unscored"] += 1
            if column.label is None:
                continue
            label = bool(pick(row, column.label, where))
            judged = None if experience.reward is None else experience.reward >= 0.5 * total
            outcome["agree" if judged == label else "disagree"] += 1
            if judged != label:
                disagreements.append(_disagreement(experience, number, label))
        if len(batch) >= _BATCH:
            _store(buffer, batch, outcome)
    _store(buffer, batch, outcome)
    compared = outcome["agree"] + outcome["disagree"]
    return {
        "name": section.name,
        **{key: outcome[key] for key in ("scored", "unscored", "stored", "quarantined", "agree", "disagree")},
        "agreement": outcome["agree"] / compared if compared else None,
        "disagreements": disagreements,
    }


def _imported(
    task: Task,
    completion: str,
    column: StoredCompletions,
    member: int,
    rewards: dict[str, tuple[Reward, float]],
    run_id: str,
) -> Experience:
    parts, unscored = score(rewards, task, completion)
    group_id = f"{run_id}/import-{task.task_id}"
    return Experience(
        experience_id=experience_id_of(run_id, task.key, 0, group_id, member),
        source="import",
        run_id=run_id,
        taskset=task.taskset,
        task_id=task.task_id,
        group_id=group_id,
        member=member,
        explorer_id=column.name,
        messages=(*task.messages, {"role": "assistant", "content": completion}),
        completion_text=completion,
        reward=None if unscored else sum(parts[name] * weight for name, (_, weight) in rewards.items()),
        reward_parts=parts,
        unscored_reason=unscored,
    )


def _store(buffer: Buffer, batch: list[Experience], outcome: Counter[str]) -> None:
    done = buffer.append(batch)
    outcome["stored"] += done.stored
    outcome["quarantined"] += done.quarantined
    batch.clear()


def _disagreement(experience: Experience, line: int, label: bool) -> dict[str, Any]:
    return {
        "experience_id": experience.experience_id,
        "line": line,
        "completion": experience.explorer_id,
        "label": label,
        "reward": experience.reward,
        "unscored": experience.unscored_reason,
        "ends": experience.completion_text[-60:],
    }


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
