"""Figures of an evaluation: mean reward, pass rate and pass@k of held-out tasks, counted per rollout."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rft_data.core.errors import EngineError, RecipeError
from rft_data.core.rows import Experience, Task, TaskKey
from rft_data.core.words import Split
from rft_data.run.parts import Heldout

log = logging.getLogger(__name__)

FULL_MARK = 1.0
"""A rollout passes when the component that decides gives it at least this; where the recipe has no
threshold."""
Rollouts = Mapping[TaskKey, Mapping[int, Experience]]
"""By task and member, the row that carries a rollout's outcome: its last turn."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Result of an evaluation. Shares are in [0, 1]."""

    pass_rate: float
    """Share of rollouts that passed; one that failed, is missing or was not scored did not."""
    by_class: Mapping[str, float]
    """The pass rate by `taskset/difficulty`."""
    pass_at_k: Mapping[str, float]
    """pass@k by k, where a task is played more than once."""
    mean_reward: float | None
    """Mean over tasks of the mean effective reward of their rollouts; None where none has a reward."""
    standard_error: float | None
    """Standard error of `mean_reward`, over tasks: rollouts of one task are no independent draws
    (arXiv:2411.00640)."""
    mean_parts: Mapping[str, float]
    """Mean of each reward component, by its name, over tasks; a component of weight 0 is measured and not
    rewarded."""
    rollouts: int
    """Rollouts that were to be played."""
    unscored: int
    """Rollouts without a reward."""

    def as_json(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return asdict(self)

    def as_metrics(self) -> dict[str, float]:
        """Figures shown beside a run's other numbers, as `heldout/NAME`."""
        found = {"pass_rate": self.pass_rate, "reward": self.mean_reward, "reward_error": self.standard_error}
        found |= {f"pass_at_k/{k}": rate for k, rate in self.pass_at_k.items()}
        return {f"heldout/{name}": float(value) for name, value in found.items() if value is not None}


def evaluation_tasks(tasks: Sequence[Task], limit: int) -> list[Task]:
    """At most `limit` held-out tasks, evenly over (taskset, difficulty), the same in every run."""
    classes: dict[tuple[str, float | None], list[Task]] = {}
    for task in sorted((t for t in tasks if t.split == Split.HELDOUT), key=lambda t: t.task_id):
        classes.setdefault((task.taskset, task.difficulty), []).append(task)
    share = max(1, limit // max(1, len(classes)))
    return [task for members in classes.values() for task in members[:share]][:limit]


def figures(rows: Sequence[Experience], heldout: Heldout) -> Figures:
    """The figures of an evaluation, from its rows with their effective rewards.

    Raises: EngineError when no rollout was scored, or none was stored; RecipeError when a reward is why.
    """
    rollouts = _rollouts(rows)
    _check_scored(rows, rollouts, heldout)
    passes = {task.key: _passes(rollouts.get(task.key, {}), task, heldout) for task in heldout.tasks}
    classes: dict[str, list[int]] = {}
    for task in heldout.tasks:
        classes.setdefault(f"{task.taskset}/{task.difficulty}", []).append(passes[task.key])
    rewards = [[r.reward for r in members.values() if r.reward is not None] for members in rollouts.values()]
    means = [statistics.fmean(scored) for scored in rewards if scored]
    played = len(heldout.tasks) * heldout.samples
    return Figures(
        pass_rate=sum(passes.values()) / played,
        by_class={name: sum(n) / (len(n) * heldout.samples) for name, n in sorted(classes.items())},
        pass_at_k=pass_at_k(list(passes.values()), heldout.samples) if heldout.samples > 1 else {},
        mean_reward=statistics.fmean(means) if means else None,
        standard_error=statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None,
        mean_parts=_mean_parts(rollouts),
        rollouts=played,
        unscored=played - sum(map(len, rewards)),
    )


def pass_at_k(right: Sequence[int], n: int) -> dict[str, float]:
    """Chance that one of k answers is right, for k = 1, 2, 4, ... and n.

    1 - C(n - c, k) / C(n, k) for c right of n answers, averaged over tasks: unbiased (arXiv:2107.03374).

    Args: right: c for each task. n: answers of every task.
    """
    ks = sorted({*(2**power for power in range(n.bit_length())), n})
    return {str(k): statistics.fmean(1 - math.comb(n - c, k) / math.comb(n, k) for c in right) for k in ks}


def _rollouts(rows: Sequence[Experience]) -> Rollouts:
    found: dict[TaskKey, dict[int, Experience]] = {}
    for row in sorted(rows, key=lambda row: row.turn):
        found.setdefault(TaskKey(row.taskset, row.task_id), {})[row.member] = row
    return found


def _mean_parts(rollouts: Rollouts) -> dict[str, float]:
    """By component, the mean over tasks of its mean over the rollouts that have it."""
    by_task: dict[str, dict[TaskKey, list[float]]] = {}
    for key, members in rollouts.items():
        for row in members.values():
            for name, value in row.reward_parts.items():
                by_task.setdefault(name, {}).setdefault(key, []).append(value)
    return {
        name: statistics.fmean(statistics.fmean(values) for values in tasks.values())
        for name, tasks in sorted(by_task.items())
    }


def _passes(members: Mapping[int, Experience], task: Task, heldout: Heldout) -> int:
    """How many of a task's rollouts passed."""
    scores = [_score(row, task, heldout) for row in members.values()]
    least = FULL_MARK if heldout.threshold is None else heldout.threshold
    # rewards are stored as float32, in which 0.9 is below the recipe's 0.9
    return sum(score is not None and bool(np.float32(score) >= np.float32(least)) for score in scores)


def _score(row: Experience, task: Task, heldout: Heldout) -> float | None:
    """The number by which a rollout passes: its reward if the recipe has a threshold, else one component."""
    if heldout.threshold is not None:
        return row.reward
    own = heldout.decided_in.get(task.taskset, heldout.decided_by)
    return row.reward_parts.get(task.reward or own)


def _check_scored(rows: Sequence[Experience], rollouts: Rollouts, heldout: Heldout) -> None:
    """Warn of rollouts without a score.

    Raises: RecipeError when a reward scored none, EngineError when something else is why none has a score.
    """
    asked = [(task, row) for task in heldout.tasks for row in rollouts.get(task.key, {}).values()]
    failed = [row for task, row in asked if _score(row, task, heldout) is None]
    if len(failed) == len(asked):
        reason = failed[0].unscored_reason if failed else "the buffer refused every row"
        said = f"all {len(failed)} evaluation rollouts failed, the first with: {reason}"
        if reason and reason.startswith("reward '"):  # without a cause in the world around it
            raise RecipeError(f"{said}; try the reward on one task: rft debug reward RECIPE.")
        raise EngineError(said)
    if failed:
        reason = failed[0].unscored_reason
        log.warning(
            "%d of %d evaluation rollouts were not scored, first: %s", len(failed), len(asked), reason
        )
