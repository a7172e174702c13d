"""Runs a list of operators over experiences or tasks; implements rft_data.core.protocols.Pipeline.

Each input row is kept, dropped with a reason, or quarantined with the exception an operator raised on it.
Data-Juicer's executors are not used: they are too slow for a training step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.base import ArrowOperator, append_or_replace
from ops.rollouts import multi_turn_rollouts
from ops.runtime.allowlist import BACKTRACKING_OPERATORS
from ops.runtime.annotations import OperatorReport, annotation_rows
from ops.runtime.counts import LostRow, OperatorCounts
from ops.runtime.limits import Limits, with_worker
from ops.runtime.native import local_stage
from ops.runtime.passage import Passage, Step
from ops.runtime.specs import OperatorList, Spec, parse
from ops.runtime.spread import SpreadStage
from ops.runtime.stage import (
    ROW,
    row_numbers,
)
from ops.runtime.workers import WorkerStage
from rft_data.core.canonical import content_id
from rft_data.core.errors import OperatorError, RecipeError
from rft_data.core.lookup import suggest


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The decisions of the whole list about N input rows."""

    kept: npt.NDArray[np.int64]
    """Input row numbers of the kept rows, ascending."""
    table: pa.Table
    """The kept rows, with the columns that operators added or changed."""
    reports: tuple[OperatorReport, ...]
    """One for each operator, in order."""


class OperatorPipeline:
    """Runs operators in this process or in workers; implements rft_data.core.protocols.Pipeline."""

    def __init__(
        self,
        operators: OperatorList,
        *,
        name: str,
        text_column: str = "completion_text",
        allow_unsafe: bool = False,
        limits: Mapping[str, Limits] | None = None,
        store: object = None,
        spread: int = 0,
    ) -> None:
        """Check and build the operators; workers are started when first needed.

        Args:
            operators: the recipe's list, `[{operator: {argument: value}}, ...]`.
            name: recipe key of the list, for messages.
            text_column: column that Data-Juicer's own operators read as their text.
            allow_unsafe: allow operators outside `ops.runtime.allowlist`.
            limits: operator name to its limits; each name must be in the list.
            store: the run's buffer, for operators that read stored rows.
            spread: run operators that have no workers of their own in so many tasks of Ray Data, on the
                cluster that this process is connected to; 0: in this process.
        Raises: RecipeError, UnknownComponentError, MissingExtraError.
        """
        specs = parse(operators, name, allow_unsafe=allow_unsafe)
        self.name = name
        self._hash = content_id([[spec.name, dict(spec.args)] for spec in specs])
        self._text_column = text_column
        self._store = store
        self._spread = spread
        self._limits = dict(limits or {})
        self._check_limits({spec.name for spec in specs})
        self._steps: list[Step] = []
        self._reads: set[str] = set()
        self._reads_text = self._natives = False
        self._build(specs)
        self._counts = OperatorCounts()

    @property
    def pipeline_hash(self) -> str:
        """Content hash of the operators' names and arguments."""
        return self._hash

    @property
    def batch_wide(self) -> list[str]:
        """Operators whose verdict on a group depends on the other groups of the batch."""
        return [step.stage.name for step in self._steps if step.ours is not None and step.ours.whole_batch]

    def run(self, experiences: pa.Table) -> pa.Table:
        """Judge every row: one annotation (schema.ANNOTATIONS) per input row, in input order.

        A row without an advantage after an advantage operator is dropped: no step could train on it. When an
        operator drops one turn of a rollout, the other turns are dropped too.
        Raises: OperatorError when an operator breaks its contract or a column it needs is missing.
        """
        self._need_columns(experiences, ["seq", "experience_id"])
        rewarded: list[pa.Table] = []
        left, reports = self._through(experiences, trained=True, rewarded=rewarded)
        for report in reports:
            self._counts.add_samples(report, experiences["experience_id"])
        return annotation_rows(experiences, left, rewarded, reports, self._hash)

    def run_tasks(self, table: pa.Table) -> Verdicts:
        """Run the list over any rows, such as tasks.

        Raises: OperatorError when an operator breaks its contract or a column it needs is missing.
        """
        work, reports = self._through(table, trained=False, rewarded=[])
        return Verdicts(row_numbers(work), _widen(table, work), tuple(reports))

    def metrics(self) -> dict[str, float]:
        """Counts of each operator since the last call.

        `<operator>/rows_in`, `/rows_out`, `/quarantined`, `/unjudged`, `/seconds`, and `/keep_rate` if
        `/rows_in` is not 0.
        """
        return self._counts.take_metrics()

    def samples(self) -> dict[str, list[LostRow]]:
        """By operator, the first few rows of `run` it dropped or failed on since the last call."""
        return self._counts.take_samples()

    def close(self) -> None:
        """End the workers, if any; idempotent."""
        for step in self._steps:
            if isinstance(step.stage, WorkerStage):
                step.stage.close()

    def _check_limits(self, known: set[str]) -> None:
        for operator in self._limits.keys() - known:
            raise RecipeError(
                f"op_limits names operator '{operator}', which '{self.name}' does not have;"
                f"{suggest(operator, known)}"
            )

    def _build(self, specs: Sequence[Spec]) -> None:
        """Build the operators. Raises: RecipeError naming every one that refuses its arguments."""
        seen: Counter[str] = Counter()
        refused: list[tuple[str, RecipeError]] = []
        for place, spec in enumerate(specs):
            seen[spec.name] += 1
            try:
                self._add(spec, spec.name if seen[spec.name] == 1 else f"{spec.name}#{seen[spec.name]}")
            except RecipeError as err:
                refused.append((f"{self.name}[{place}]: {err}", err))
        if refused:
            raise RecipeError("\n".join(said for said, _ in refused)) from refused[0][1]

    def _add(self, spec: Spec, label: str) -> None:
        """Build an operator and append it to the list."""
        op = spec.build(self._text_column)
        limits = self._limits.get(spec.name, Limits())
        if spec.name in BACKTRACKING_OPERATORS:
            limits = with_worker(limits)
        if isinstance(op, ArrowOperator):
            self._attach(op, label, limits)
            self._reads.update(op.required_columns, op.optional_columns)
        else:
            self._natives = True
            self._reads_text |= "text_key" not in spec.args
        stage = local_stage(label, op)
        if limits.workers:
            stage = WorkerStage(stage, spec, self._text_column, limits)
        elif self._spread and not getattr(op, "needs_store", False):
            stage = SpreadStage(stage, spec, self._text_column, self._spread)
        self._steps.append(Step(stage, limits, op))

    def _attach(self, op: ArrowOperator, label: str, limits: Limits) -> None:
        if not op.needs_store or op.buffer is not None:
            return
        if self._store is None or limits.workers:
            why = "this pipeline has none" if self._store is None else "its workers cannot share the run's"
            raise RecipeError(
                f"operator '{label}' of '{self.name}' reads stored rows of a buffer, and {why}; "
                "set its argument 'buffer' to the uri of one."
            )
        op.attach(self._store)

    def _through(
        self, table: pa.Table, *, trained: bool, rewarded: list[pa.Table]
    ) -> tuple[pa.Table, list[OperatorReport]]:
        """The kept rows (only the columns operators use, and ROW) and a report for each operator.

        Args: as `Passage`.
        """
        self._need_columns(table, [self._text_column] if self._reads_text else [])
        turns = multi_turn_rollouts(table) if any(step.splits_rollouts for step in self._steps) else None
        passage = Passage(_narrow(table, self._reads, self._natives), turns, trained, rewarded)
        passage.run(self._steps)
        for report in passage.reports:
            self._counts.add(report)
        return passage.work, passage.reports

    def _need_columns(self, table: pa.Table, names: Sequence[str]) -> None:
        for name in names:
            if name not in table.column_names:
                raise OperatorError(
                    f"operator list '{self.name}' needs column '{name}', which the rows lack; "
                    f"they have {table.column_names}."
                )


def _narrow(table: pa.Table, wanted: set[str], natives: bool) -> pa.Table:
    """Column ROW and the columns that operators read: copying all texts and token lists would take long.

    Data-Juicer's own operators (`natives`) do not declare columns, so they get every text and number.
    """
    if natives:
        heavy = (pa.types.is_nested, pa.types.is_temporal)
        light = [field.name for field in table.schema if not any(test(field.type) for test in heavy)]
        wanted = wanted.union(light)
    names = [name for name in table.column_names if name in wanted]
    return pa.table({**{name: table[name] for name in names}, ROW: np.arange(table.num_rows)})


def _widen(table: pa.Table, work: pa.Table) -> pa.Table:
    """The kept rows of `table`, with the columns that operators changed or added."""
    given = dict(zip(work.column_names, work.columns, strict=True))
    rows = given.pop(ROW)
    if len(rows) == table.num_rows:  # all rows are kept, in order: nothing is copied
        for name, column in given.items():
            table = append_or_replace(table, name, column)
        return table
    rest = table.select([name for name in table.column_names if name not in given]).take(rows)
    columns = {name: given.pop(name) if name in given else rest[name] for name in table.column_names}
    return pa.table({**columns, **given})
