"""Held-out accuracy: which tasks are asked, what share of the answers is right, and pass@k."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rft_data.core.codec import to_experiences
from rft_data.core.errors import EngineError
from rft_data.core.rows import Experience, Task, TaskKey
from rft_data.core.words import RunPhase, Split
from rft_data.loop.fleet import Fleet
from rft_data.run.folder import Run
from rft_data.run.parts import Heldout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares in [0, 1]."""

    overall: float
    by_class: dict[str, float]
    """By `taskset/difficulty`."""


def evaluation_tasks(tasks: Sequence[Task], limit: int) -> list[Task]:
    """At most `limit` held-out tasks, evenly over (taskset, difficulty), the same in every run."""
    classes: dict[tuple[str, float | None], list[Task]] = {}
    for task in sorted((t for t in tasks if t.split == Split.HELDOUT), key=lambda t: t.task_id):
        classes.setdefault((task.taskset, task.difficulty), []).append(task)
    share = max(1, limit // max(1, len(classes)))
    return [task for members in classes.values() for task in members[:share]][:limit]


def measure(run: Run, fleet: Fleet, heldout: Heldout, label: str, key: str) -> None:
    """Play held-out tasks on the weights published last, and record the accuracy in the run's progress.

    Args: label: names the rows. key: names the figure.
    """
    with run.timed(RunPhase.EVALUATION):
        fleet.settle()
        name = f"{run.run_id}/eval-{label}-{run.attempt}"
        rows = to_experiences(run.buffer.take(fleet.evaluate(heldout.tasks, name, heldout.samples)))
        found = accuracy(rows, heldout.tasks, heldout.decided_by)
        progress = run.progress
        if heldout.samples > 1:
            share = pass_at_k(rows, heldout.tasks, heldout.decided_by)
            run.note(pass_at_k={**progress.pass_at_k, key: share})
        run.note(
            heldout_accuracy={**progress.heldout_accuracy, key: found.overall},
            by_difficulty={**progress.by_difficulty, key: found.by_class},
        )
    log.info("held-out accuracy, %s: %.1f %% of %d tasks", key, 100 * found.overall, len(rows))


def accuracy(rows: Sequence[Experience], tasks: Sequence[Task], judge: str) -> Accuracy:
    """Share of rows whose reward part `judge` is 1.0 (a task's own reward, where it names one).

    An unscored or failed rollout counts as wrong.
    Raises: EngineError when every rollout failed, or none was stored.
    """
    by_key = {task.key: task for task in tasks}
    asked = [by_key[TaskKey(row.taskset, row.task_id)] for row in rows]
    scores = [row.reward_parts.get(task.reward or judge) for row, task in zip(rows, asked, strict=True)]
    failed = [row for row, score in zip(rows, scores, strict=True) if score is None]
    if len(failed) == len(rows):
        reason = failed[0].unscored_reason if failed else "the buffer refused every row"
        raise EngineError(f"all {len(rows)} evaluation rollouts failed, the first with: {reason}")
    if failed:
        reason = failed[0].unscored_reason
        log.warning("%d of %d evaluation rollouts were not scored, first: %s", len(failed), len(rows), reason)
    passed: dict[str, list[float]] = {}
    for task, score in zip(asked, scores, strict=True):
        passed.setdefault(f"{task.taskset}/{task.difficulty}", []).append(float(score == 1.0))
    total = [value for values in passed.values() for value in values]
    by_class = {name: sum(values) / len(values) for name, values in sorted(passed.items())}
    return Accuracy(sum(total) / len(total), by_class)


def pass_at_k(rows: Sequence[Experience], tasks: Sequence[Task], judge: str) -> dict[str, float]:
    """Chance that one of k answers is right, for k = 1, 2, 4, ... and the number of answers per task.

    1 - C(n - c, k) / C(n, k) for c right of n answers, averaged over tasks: unbiased (arXiv:2107.03374). What
    is right is as in `accuracy`; a rollout that is missing counts as wrong: n is the most any task has.
    """
    decides = {task.key: task.reward or judge for task in tasks}
    answers: dict[TaskKey, dict[int, bool]] = {}
    for row in rows:
        key = TaskKey(row.taskset, row.task_id)
        members = answers.setdefault(key, {})
        members[row.member] = members.get(row.member, False) or row.reward_parts.get(decides[key]) == 1.0
    n = max(map(len, answers.values()))
    right = [sum(members.values()) for members in answers.values()]
    ks = sorted({*(2**power for power in range(n.bit_length())), n})
    return {str(k): sum(1 - math.comb(n - c, k) / math.comb(n, k) for c in right) / len(right) for k in ks}
