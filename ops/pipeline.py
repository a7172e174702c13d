"""An ordered list of operators over experiences or tasks, as rft_data.protocols.Pipeline wants it.

Every row that goes in comes out kept, dropped with a reason, or quarantined with the exception an
operator raised on it. Data-Juicer's executors are not used: they are too slow for a training step.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.base import ArrowOperator
from ops.native import META, STATS, native_stage
from ops.specs import OperatorList, parse
from ops.stage import ROW, ArrowStage, Outcome, Stage, apply, row_numbers
from rft_data import schema
from rft_data.errors import OperatorError
from rft_data.rows import canonical_json, content_id, now


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """What one operator of the list did in one run."""

    name: str
    """Its name, with `#2` behind it for the second of that name."""
    rows_in: int
    rows_out: int
    seconds: float
    dropped: Mapping[int, str]
    """Input row number to reason."""
    quarantined: Mapping[int, str]
    """Input row number to `operator: exception: message`."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the whole list did with N input rows."""

    kept: npt.NDArray[np.int64]
    """Input row numbers that stay, ascending."""
    table: pa.Table
    """Those rows, with the columns operators added or edited."""
    reports: tuple[OperatorReport, ...]
    """One for each operator, in order."""


class OperatorPipeline:
    """Runs operators in this process; implements rft_data.protocols.Pipeline."""

    def __init__(
        self,
        operators: OperatorList,
        *,
        name: str,
        text_column: str = "completion_text",
        allow_unsafe: bool = False,
    ) -> None:
        """Check and build the operators.

        Args:
            operators: the recipe's list, `[{operator: {argument: value}}, ...]`.
            name: its recipe key, for messages.
            text_column: column that Data-Juicer's own operators read as their text.
            allow_unsafe: let in operators outside `ops.allowlist`.
        Raises: RecipeError, UnknownComponentError, MissingExtraError.
        """
        specs = parse(operators, name, allow_unsafe=allow_unsafe)
        self.name = name
        self._hash = content_id([[spec.name, dict(spec.args)] for spec in specs])
        self._text_column = text_column
        self._stages: list[Stage] = []
        self._reads: set[str] = set()
        self._reads_text = False
        seen: Counter[str] = Counter()
        for spec in specs:
            seen[spec.name] += 1
            label = spec.name if seen[spec.name] == 1 else f"{spec.name}#{seen[spec.name]}"
            op = spec.build(text_column)
            if isinstance(op, ArrowOperator):
                self._stages.append(ArrowStage(label, op))
                self._reads.update(op.required_columns, op.optional_columns)
            else:
                self._stages.append(native_stage(label, op))
                self._reads_text |= "text_key" not in spec.args
        self._metrics: defaultdict[str, float] = defaultdict(float)

    @property
    def pipeline_hash(self) -> str:
        """Content hash of the operators' names and arguments."""
        return self._hash

    def run(self, experiences: pa.Table) -> pa.Table:
        """Judge every row: one annotation (schema.ANNOTATIONS) per input row, in input order.

        Raises: OperatorError when an operator breaks its contract or a column it needs is missing.
        """
        self._need_columns(experiences, ["seq", "experience_id"])
        kept, reports = self._through(experiences)
        return _annotations(experiences, kept, reports, self._hash)

    def run_tasks(self, table: pa.Table) -> Verdicts:
        """Run the list over any rows, such as tasks, and say what became of each.

        Raises: OperatorError when an operator breaks its contract or a column it needs is missing.
        """
        work, reports = self._through(table)
        return Verdicts(row_numbers(work), _widen(table, work), tuple(reports))

    def metrics(self) -> dict[str, float]:
        """`<operator>/rows_in`, `/rows_out`, `/quarantined` and `/seconds` since the last call."""
        metrics, self._metrics = dict(self._metrics), defaultdict(float)
        return metrics

    def _through(self, table: pa.Table) -> tuple[pa.Table, list[OperatorReport]]:
        """The rows that stay (narrow, with ROW) and a report for each operator."""
        self._need_columns(table, [self._text_column] if self._reads_text else [])
        work = _narrow(table, self._reads).append_column(ROW, pa.array(np.arange(table.num_rows)))
        reports = []
        for stage in self._stages:
            start = time.perf_counter()
            outcome = apply(stage, work) if work.num_rows else Outcome(work)
            reports.append(
                OperatorReport(
                    name=stage.name,
                    rows_in=work.num_rows,
                    rows_out=outcome.table.num_rows,
                    seconds=time.perf_counter() - start,
                    dropped=outcome.dropped,
                    quarantined=outcome.quarantined,
                )
            )
            self._count(reports[-1])
            work = outcome.table
        return work, reports

    def _count(self, report: OperatorReport) -> None:
        self._metrics[f"{report.name}/rows_in"] += report.rows_in
        self._metrics[f"{report.name}/rows_out"] += report.rows_out
        self._metrics[f"{report.name}/quarantined"] += len(report.quarantined)
        self._metrics[f"{report.name}/seconds"] += report.seconds

    def _need_columns(self, table: pa.Table, names: list[str]) -> None:
        for name in names:
            if name not in table.column_names:
                raise OperatorError(
                    f"operator list '{self.name}' needs column '{name}', which the rows lack; "
                    f"they have {table.column_names}."
                )


def _narrow(table: pa.Table, wanted: set[str]) -> pa.Table:
    """`table` without lists and times nobody reads: copying token lists is most of a filter's cost."""
    return table.select(
        [
            field.name
            for field in table.schema
            if field.name in wanted
            or not (pa.types.is_nested(field.type) or pa.types.is_temporal(field.type))
        ]
    )


def _widen(table: pa.Table, work: pa.Table) -> pa.Table:
    """The kept rows of `table`, with what operators edited or added."""
    kept = table.take(work[ROW])
    columns = {name: work[name] if name in work.column_names else kept[name] for name in table.column_names}
    added = {name: work[name] for name in work.column_names if name not in columns and name != ROW}
    return pa.table({**columns, **added})


def _annotations(
    experiences: pa.Table, kept: pa.Table, reports: Sequence[OperatorReport], pipeline_hash: str
) -> pa.Table:
    """One row of schema.ANNOTATIONS for each experience; `kept` carries ROW."""
    rows = experiences.num_rows
    verdict, dropped_by, reason = ["kept"] * rows, [""] * rows, [""] * rows
    for report in reports:
        for kind, lost in (("dropped", report.dropped), ("quarantined", report.quarantined)):
            for row, why in lost.items():
                verdict[row], dropped_by[row], reason[row] = kind, report.name, why
    place = np.full(rows, -1)
    place[row_numbers(kept)] = np.arange(kept.num_rows)
    places = pa.array(place, mask=place < 0)
    stats = pa.array(_stats(experiences, kept), pa.string())
    columns = {
        "seq": experiences["seq"],
        "experience_id": experiences["experience_id"],
        "pipeline_hash": pa.repeat(pipeline_hash, rows),
        "verdict": verdict,
        "dropped_by": dropped_by,
        "reason": reason,
        "advantage": _spread(kept, "advantage", places),
        "shaped_reward": _spread(kept, "shaped_reward", places),
        "stats": stats.take(places).fill_null("{}"),
        "created_at": pa.repeat(pa.scalar(now(), schema.ANNOTATIONS.field("created_at").type), rows),
    }
    return pa.table(columns, schema=schema.ANNOTATIONS)


def _spread(kept: pa.Table, name: str, places: pa.Array) -> pa.Array:
    """A column of the kept rows, spread over all rows; null where the row was not kept."""
    kind = schema.ANNOTATIONS.field(name).type
    if name not in kept.column_names:
        return pa.nulls(len(places), kind)
    return kept[name].cast(kind).combine_chunks().take(places)


def _stats(experiences: pa.Table, kept: pa.Table) -> list[str]:
    """What operators computed beside advantage and shaped reward, as JSON, for each kept row."""
    known = {*experiences.column_names, ROW, "advantage", "shaped_reward"}
    added = [name for name in kept.column_names if name not in known]
    if not added:
        return ["{}"] * kept.num_rows
    texts = []
    for row in kept.select(added).to_pylist():
        nested = {**(row.pop(STATS, None) or {}), **(row.pop(META, None) or {})}
        texts.append(canonical_json(_plain({**nested, **row})))
    return texts


def _plain(value: Any) -> Any:
    """A value JSON can hold; a float that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
