"""Data runs: load tasks, clean them, store somebody's rollouts and score them. No model is involved."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from explorers.single_turn import score
from rft_data.buffer import Buffer
from rft_data.build import prepare_process, rewards_of, task_pipeline, tasks_of
from rft_data.errors import RecipeError
from rft_data.manifest import write_text
from rft_data.recipe.modes import DataRecipe, Recipe
from rft_data.recipe.sections import Rollouts
from rft_data.rows import Experience, Task, content_id, experience_id_of
from rft_data.sources import pick, read_jsonl

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
        "operators": operators,
    }
    scorer = Scorer(recipe) if recipe.rollouts else None
    with Buffer(recipe.buffer.uri, durability=recipe.buffer.durability) as buffer:
        report["tasks_new"] = buffer.add_tasks(kept)
        report["rollouts"] = [
            scorer.score_file(section, kept, buffer) for section in recipe.rollouts if scorer is not None
        ]
        report["buffer_rows"] = {name: n for name, n in buffer.counts().items() if n}
    path = Path(f"{recipe.buffer.uri}.report.json")
    report["report"] = str(path)
    write_text(path, json.dumps(report, indent=1))
    return report


def clean_tasks(tasks: Sequence[Task], recipe: Recipe) -> tuple[list[Task], list[dict[str, Any]]]:
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


class Scorer:
    """Scores rollouts that somebody else made and stores them as experiences of source `import`."""

    def __init__(self, recipe: DataRecipe) -> None:
        """The reward is part of an experience's id: other components or weights make other rows."""
        self._rewards = rewards_of(recipe.reward)
        self._run_id = recipe.name
        self._reward_hash = content_id([section.model_dump() for section in recipe.reward])[:8]
        self._correct = 0.5 * sum(weight for _, weight in self._rewards.values())

    def score_file(self, section: Rollouts, tasks: Sequence[Task], buffer: Buffer) -> dict[str, Any]:
        """Store a file's rollouts, scored; where it has labels, compare.

        A rollout belongs to the task of `section.taskset` with the same prompt; one whose task is not
        there (never read, or dropped) is counted as `no_task` and not stored. Reward >= 0.5 of the total
        weight is read as "correct".
        """
        path = Path(section.source.path)
        by_prompt = {task.messages[-1]["content"]: task for task in tasks if task.taskset == section.taskset}
        outcome: Counter[str] = Counter()
        members: Counter[str] = Counter()
        disagreements: list[dict[str, Any]] = []
        batch: list[Experience] = []
        for number, row in read_jsonl(path):
            where = f"{path}:{number}"
            task = by_prompt.get(str(pick(row, section.prompt, where)))
            if task is None:
                outcome["no_task"] += len(section.completions)
                continue
            for column in section.completions:
                text = str(pick(row, column.text, where))
                experience = self._experience(task, text, column.name, members[task.task_id])
                members[task.task_id] += 1
                batch.append(experience)
                outcome["unscored" if experience.reward is None else "scored"] += 1
                if column.label is None:
                    continue
                label = bool(pick(row, column.label, where))
                agrees = experience.reward is not None and (experience.reward >= self._correct) == label
                outcome["agree" if agrees else "disagree"] += 1
                if not agrees:
                    disagreements.append(_disagreement(experience, number, label))
            if len(batch) >= _BATCH:
                _store(buffer, batch, outcome)
        _store(buffer, batch, outcome)
        compared = outcome["agree"] + outcome["disagree"]
        counted = ("scored", "unscored", "no_task", "stored", "quarantined", "agree", "disagree")
        return {
            "name": section.name,
            **{key: outcome[key] for key in counted},
            "agreement": outcome["agree"] / compared if compared else None,
            "disagreements": disagreements,
        }

    def _experience(self, task: Task, completion: str, author: str, member: int) -> Experience:
        group_id = f"{self._run_id}/import-{self._reward_hash}-{task.task_id}"
        return Experience(
            experience_id=experience_id_of(self._run_id, task.key, 0, group_id, member),
            source="import",
            run_id=self._run_id,
            taskset=task.taskset,
            task_id=task.task_id,
            group_id=group_id,
            member=member,
            explorer_id=author,
            messages=(*task.messages, {"role": "assistant", "content": completion}),
            prompt_messages=len(task.messages),
            completion_text=completion,
            **score(self._rewards, task, completion),
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
