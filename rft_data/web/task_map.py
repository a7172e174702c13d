"""Tasks by the time they were played, and how often they were solved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rft_data.buffer import Buffer
from rft_data.tasks.record import played, tally

MOST_TASKS, COLUMNS = 80, 40
_LEVELS = 8


@dataclass(frozen=True, slots=True)
class Cell:
    """Rollouts and rewards of a task in a range of steps."""

    column: int
    share: float
    """Share of its rollouts that solved it."""
    level: int
    """The share in steps of an eighth."""
    title: str


@dataclass(frozen=True, slots=True)
class TaskLine:
    taskset: str
    task_id: str
    rollouts: int
    pass_rate: float
    """Posterior mean of the probability that a rollout solves it: Beta(1 + passes, 1 + failures)."""
    uncertainty: float
    """Posterior standard deviation."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class TaskMap:
    """The tasks of a run, hardest first."""

    lines: tuple[TaskLine, ...]
    tasks: int
    """That were played; at most 80 of them are lines."""
    never: int
    """Tasks of which no rollout was solved."""
    always: int
    """Tasks of which every rollout was solved."""
    width: int
    """Optimizer steps in a column."""


def task_map(buffer: Buffer, run_id: str) -> TaskMap:
    """Played tasks of a run; where there are many, every n-th by pass rate."""
    table = played(buffer, run_id=run_id)
    passes, rollouts = tally(table, None)
    alpha, beta = passes + 1, rollouts - passes + 1
    means = alpha / (alpha + beta)
    spread = np.sqrt(alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1)))
    rows = table.to_pylist()
    oldest = max((age for row in rows for age in row["played_age"] if age is not None), default=0)
    width = oldest // COLUMNS + 1
    order = np.argsort(means, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(MOST_TASKS, len(order))).astype(int))]
    lines = tuple(
        TaskLine(
            rows[place]["taskset"],
            rows[place]["task_id"],
            int(rollouts[place]),
            float(means[place]),
            float(spread[place]),
            _cells(rows[place], oldest, width),
        )
        for place in chosen
    )
    return TaskMap(lines, len(rows), int((passes == 0).sum()), int((passes == rollouts).sum()), width)


def _cells(row: dict[str, list[float]], oldest: int, width: int) -> tuple[Cell, ...]:
    sums: dict[int, tuple[float, int]] = {}
    for age, passes, rollouts in zip(
        row["played_age"], row["played_passes"], row["played_rollouts"], strict=True
    ):
        if age is not None:
            column = int(oldest - age) // width
            before = sums.get(column, (0.0, 0))
            sums[column] = (before[0] + passes, before[1] + int(rollouts))
    return tuple(
        Cell(
            column,
            passes / rollouts,
            round(_LEVELS * passes / rollouts),
            f"steps {column * width} to {(column + 1) * width - 1}: {passes:g} of {rollouts} solved",
        )
        for column, (passes, rollouts) in sorted(sums.items())
    )
