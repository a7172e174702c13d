"""Takes the rows of one table through the operators of a list, one after another, and reports on each.

Neighbouring operators that a cluster runs (`spread.py`) take rows together, in one pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa

from ops.base import ArrowOperator
from ops.rollouts import Ints, torn
from ops.runtime.annotations import OperatorReport, without_advantage
from ops.runtime.limits import Limits
from ops.runtime.spread import SpreadStage, chained
from ops.runtime.stage import (
    ROW,
    Outcome,
    Stage,
    all_failed,
    apply,
    dropped_too,
    marked,
    row_numbers,
    settled,
)
from rft_data.core.effective_reward import REWARD, SHAPED_REWARD


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of the list."""

    stage: Stage
    limits: Limits
    op: object
    """The operator; its stage may run a copy of it in workers."""

    @property
    def ours(self) -> ArrowOperator | None:
        """The operator if it is one of ours, which declare their columns and groups; else None."""
        return self.op if isinstance(self.op, ArrowOperator) else None

    @property
    def splits_rollouts(self) -> bool:
        """Whether it judges single rows, so that it may drop some turns of a rollout and keep others."""
        return self.ours is None or self.ours.group_key is None

    @property
    def joins(self) -> bool:
        """Whether a cluster may run it in one pass with a neighbour: it judges each row alone.

        Other operators, and failures that are not the row's own affair, are looked at for all rows at once.
        """
        spread = isinstance(self.stage, SpreadStage) and self.stage.by_rows
        return spread and self.limits.on_failure == "quarantine"


def passes(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps in order; neighbours that a cluster runs in one pass are together."""
    for joins, group in groupby(steps, key=lambda step: step.joins):
        some = list(group)
        yield from [some] if joins else [[step] for step in some]


@dataclass(slots=True)
class Passage:
    """Rows on their way through a list of operators."""

    work: pa.Table
    """The rows that are left, with ROW and the columns that operators use."""
    turns: Ints | None
    """The rollout of each row, where a rollout has several turns; it loses all when it loses one."""
    trained: bool
    """Whether rows without an advantage are dropped after an advantage operator. What is dropped after the
    last operator is in its report, and still among the rows that are left."""
    rewarded: list[pa.Table]
    """Gets ROW and the rewards of every row that is lost, as they were then."""
    reports: list[OperatorReport] = field(default_factory=list)
    _unjudged: set[int] = field(default_factory=set)

    def run(self, steps: Sequence[Step]) -> None:
        """Take the rows through all steps."""
        alone = self.trained or self.turns is not None  # then not only the operators decide about a row
        for some in [[step] for step in steps] if alone else passes(steps):
            if len(some) == 1 or not self._together(some):
                for step in some:
                    self._judge(step, is_last=step is steps[-1])
        self.rewarded.append(self.work)

    def _judge(self, step: Step, *, is_last: bool) -> None:
        start, work = time.perf_counter(), self.work
        outcome = _outcome(step, work, self._unjudged) if work.num_rows else Outcome(work)
        left = outcome.table.num_rows
        lost = _torn(outcome, self.turns) if self.turns is not None and step.splits_rollouts else {}
        if self.trained:
            lost |= {row: why for row, why in without_advantage(outcome).items() if row not in lost}
        if lost:  # after the last operator the rows are not read, and copying the others would take long
            outcome = (marked if self.trained and is_last else dropped_too)(outcome, lost)
        self._unjudged.update(outcome.unjudged)
        seconds = time.perf_counter() - start
        self._report(step, outcome, work.num_rows, left - len(lost), seconds)
        self.rewarded.append(_rewards_of_lost(work, outcome.table))
        self.work = outcome.table

    def _together(self, steps: Sequence[Step]) -> bool:
        """Take the rows through neighbours in one pass of the cluster; False, and nothing done, for few."""
        if self._unjudged:  # `_outcome` looks at all rows together
            return False
        start, before = time.perf_counter(), self.work.num_rows
        found = chained([step.stage for step in steps if isinstance(step.stage, SpreadStage)], self.work)
        if found is None:
            return False
        self.work, losses = found
        share = (time.perf_counter() - start) / sum(lost.seconds for lost in losses)
        for step, lost in zip(steps, losses, strict=True):
            left = before - len(lost.dropped) - len(lost.quarantined)
            took = share * lost.seconds
            self._report(step, Outcome(self.work, lost.dropped, lost.quarantined), before, left, took)
            before = left
        return True

    def _report(self, step: Step, outcome: Outcome, rows_in: int, rows_out: int, seconds: float) -> None:
        lost = (outcome.dropped, outcome.quarantined, outcome.unjudged)
        self.reports.append(OperatorReport(step.stage.name, rows_in, rows_out, seconds, *lost))


def _outcome(step: Step, work: pa.Table, unjudged: set[int]) -> Outcome:
    """Run an operator over `work`. Args: unjudged: kept rows that an earlier operator failed on."""
    needs = step.ours.required_columns if step.ours is not None else ()
    missing = [name for name in needs if name not in work.column_names]
    if missing and unjudged.issuperset(row_numbers(work).tolist()):
        # The operator that adds the column failed on every row, as when a judge is down: the list is right.
        why = f"{step.stage.name}: needs column '{missing[0]}', and the operators before failed on every row"
        return settled(step.stage, work, all_failed(work, why), step.limits.on_failure)
    return apply(step.stage, work, step.limits.on_failure)


def _rewards_of_lost(before: pa.Table, after: pa.Table) -> pa.Table:
    """ROW and the rewards of the rows of `before` that are not in `after`."""
    part = before.select([name for name in before.column_names if name in (ROW, REWARD, SHAPED_REWARD)])
    if before.num_rows == after.num_rows:
        return part.slice(0, 0)
    return part.filter(pa.array(np.isin(row_numbers(before), row_numbers(after), invert=True)))


def _torn(outcome: Outcome, turns: Ints) -> dict[int, str]:
    """Kept rows of rollouts that have lost another turn, with the reason to drop them too."""
    return torn(turns, row_numbers(outcome.table), {**outcome.dropped, **outcome.quarantined})
