"""One operator of a pipeline at work: strict, conserving, and bisected to what makes it fail.

Stages wrap operators: `ArrowStage` ours, `ops.native` Data-Juicer's own. Rows are followed by the
number in column ROW, so an operator that invents, repeats or loses a row is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.grouping import Groups
from rft_data.errors import MissingExtraError, OperatorError

ROW = "__rft_row__"
"""Column with a row's number in the pipeline's input."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one operator did with a table."""

    table: pa.Table
    """Rows that stay, with the columns the operator added."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Row number to reason."""
    quarantined: dict[int, str] = field(default_factory=dict)
    """Row number to the exception the operator raised on it."""


class Stage(Protocol):
    """An operator as the pipeline runs it."""

    name: str

    def attempt(self, table: pa.Table) -> Outcome:
        """Run the operator once; may raise anything, for it is user code."""
        ...

    def halves(self, table: pa.Table) -> Sequence[pa.Table]:
        """`table` in two parts that may be run apart, or [] when it is one row or one group."""
        ...


class ArrowStage:
    """One of our operators (`ops.base`)."""

    def __init__(self, name: str, op: Any) -> None:
        self.name = name
        self._op = op

    def attempt(self, table: pa.Table) -> Outcome:
        """Run the Arrow core; filters through `judge`, which knows the reasons."""
        for column in self._op.required_columns:
            if column not in table.column_names:
                raise OperatorError(
                    f"operator '{self.name}' needs column '{column}', which is not among "
                    f"{table.column_names}; put the operator that adds it before this one."
                )
        if not hasattr(self._op, "judge"):
            return Outcome(self._op.process_table(table))
        judgement = self._op.judge(table)
        keep = np.asarray(judgement.keep)
        gone = row_numbers(table)[~keep] if len(keep) == table.num_rows else []
        if len(keep) != table.num_rows or len(gone) != len(judgement.reasons):
            raise OperatorError(
                f"operator '{self.name}' judged {len(keep)} rows and gave {len(judgement.reasons)} reasons "
                f"for {table.num_rows} rows; wanted one verdict a row and one reason a dropped row."
            )
        return Outcome(
            table.filter(pa.array(keep)), dict(zip(map(int, gone), judgement.reasons, strict=True))
        )

    def halves(self, table: pa.Table) -> Sequence[pa.Table]:
        """Split rows, or whole groups when the operator works on groups."""
        if self._op.group_key is None:
            return row_halves(table)
        groups = Groups.of(table, self._op.group_key)
        first = pa.array(groups.codes < groups.count // 2)
        second = pa.array(groups.codes >= groups.count // 2)
        return [table.filter(first), table.filter(second)] if groups.count > 1 else []


def apply(stage: Stage, table: pa.Table) -> Outcome:
    """Run a stage over `table` (with ROW); rows stay in order and each is accounted for.

    Raises: OperatorError when the operator invents, repeats or loses rows; MissingExtraError.
    """
    outcome = _attempt(stage, table)
    if ROW not in outcome.table.column_names:
        raise OperatorError(f"operator '{stage.name}' dropped column '{ROW}'; operators must keep columns.")
    kept = row_numbers(outcome.table)
    after = np.sort(np.concatenate([kept, _keys(outcome.dropped), _keys(outcome.quarantined)]))
    if not np.array_equal(after, row_numbers(table)):
        raise OperatorError(
            f"operator '{stage.name}' turned {table.num_rows} rows into {len(after)} "
            f"({len(kept)} kept, {len(outcome.dropped)} dropped, {len(outcome.quarantined)} quarantined), "
            "or exchanged some; wanted every row exactly once. Operators that multiply or merge rows "
            "cannot run in a pipeline: run them with dj-process."
        )
    if (np.diff(kept) < 0).any():
        return Outcome(outcome.table.take(np.argsort(kept)), outcome.dropped, outcome.quarantined)
    return outcome


def _attempt(stage: Stage, table: pa.Table) -> Outcome:
    try:
        return stage.attempt(table)
    except (MissingExtraError, OperatorError, MemoryError):
        raise
    except Exception as err:  # noqa: BLE001  the edge of user code: the failure becomes the row's record
        failure = f"{stage.name}: {type(err).__name__}: {err}"
    halves = stage.halves(table)
    if not halves:
        return Outcome(table.slice(0, 0), {}, dict.fromkeys(row_numbers(table).tolist(), failure))
    return _merge([_attempt(stage, half) for half in halves])


def _merge(parts: Sequence[Outcome]) -> Outcome:
    # A part without rows lacks the columns the operator adds.
    tables = [part.table for part in parts if part.table.num_rows] or [parts[0].table]
    return Outcome(
        pa.concat_tables(tables, promote_options="permissive"),
        {row: why for part in parts for row, why in part.dropped.items()},
        {row: why for part in parts for row, why in part.quarantined.items()},
    )


def row_halves(table: pa.Table) -> Sequence[pa.Table]:
    """`table` cut in two, or [] for a single row."""
    middle = table.num_rows // 2
    return [table.slice(0, middle), table.slice(middle)] if middle else []


def row_numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """Column ROW."""
    numbers: npt.NDArray[np.int64] = table[ROW].to_numpy()
    return numbers


def _keys(rows: dict[int, str]) -> npt.NDArray[np.int64]:
    return np.fromiter(rows, np.int64, len(rows))
