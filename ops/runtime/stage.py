"""Runs one operator of a pipeline, checks that no row is lost, and finds the rows on which it fails.

A stage wraps an operator: `ArrowStage` one of ours, `native.py` one of Data-Juicer's, `workers.py` either
in other processes. Column ROW numbers the rows: an operator that adds, repeats or loses one gets an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.grouping import Groups
from ops.runtime.limits import OnFailure
from rft_data.core.errors import OperatorError, RftError, RowError
from rft_data.core.masking import masked

ROW = "__rft_row__"
"""Column with a row's number in the pipeline's input."""


class BatchError(OperatorError):
    """An operator failed on rows that it compares with each other, so no single row is the cause."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one operator on a table."""

    table: pa.Table
    """Rows that stay, with the columns the operator added."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Row number to reason."""
    quarantined: dict[int, str] = field(default_factory=dict)
    """Row number to the exception the operator raised on it."""
    unjudged: dict[int, str] = field(default_factory=dict)
    """The same for rows that are kept although the operator failed on them (`on_failure: keep`)."""


class Stage(Protocol):
    """An operator as the pipeline runs it."""

    name: str

    def attempt(self, table: pa.Table) -> Outcome:
        """Run the operator once. It is user code, so it may raise anything."""
        ...

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """`table` in at most `count` parts that can run separately; one part for a single row or group."""
        ...


class ArrowStage:
    """One of our operators (`ops.base`)."""

    def __init__(self, name: str, op: Any) -> None:
        self.name = name
        self._op = op

    @property
    def by_rows(self) -> bool:
        """Whether the operator judges each row alone."""
        return not self._op.whole_batch and self._op.group_key is None

    def attempt(self, table: pa.Table) -> Outcome:
        """Call `judge` of a filter, which gives reasons, or `process_table` of a mapper."""
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

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Split rows, or whole groups when the operator works on groups."""
        if self._op.whole_batch:
            return [table]
        if self._op.group_key is None:
            return row_parts(table, count)
        groups = Groups.of(table, self._op.group_key)
        count = min(count, groups.count)
        if count < 2:
            return [table]
        part = groups.codes * count // groups.count
        return [table.filter(pa.array(part == number)) for number in range(count)]


def apply(stage: Stage, table: pa.Table, on_failure: OnFailure = "quarantine") -> Outcome:
    """Run a stage over `table` (with ROW). Rows keep their order; each is kept, dropped or quarantined.

    Raises: OperatorError when the operator adds, repeats or loses rows, and when it fails and
        `on_failure` is `stop`; BatchError when no single row is the cause; any RftError of the operator
        except a RowError: a full disk or a missing file has nothing to do with a row.
    """
    try:
        outcome = _attempt(stage, table)
    except BatchError as err:
        if on_failure != "keep":
            raise
        outcome = all_failed(table, str(err))
    return settled(stage, table, outcome, on_failure)


def settled(stage: Stage, table: pa.Table, outcome: Outcome, on_failure: OnFailure) -> Outcome:
    """Check the outcome of a stage over `table`, and handle its failures as `on_failure` says.

    Raises: OperatorError as `apply`.
    """
    if _untouched(table, outcome):
        return outcome
    _check_conserved(stage, table, outcome)
    if outcome.quarantined and on_failure == "stop":
        first = min(outcome.quarantined)
        raise OperatorError(
            f"operator '{stage.name}' failed on {len(outcome.quarantined)} of {table.num_rows} rows, first "
            f"on row {first} with: {outcome.quarantined[first]}; its 'on_failure: stop' ends the run."
        )
    if outcome.quarantined and on_failure == "keep":
        outcome = _kept_unjudged(table, outcome)
    kept = row_numbers(outcome.table)
    if (np.diff(kept) < 0).any():
        return replace(outcome, table=outcome.table.take(np.argsort(kept)))
    return outcome


def _untouched(table: pa.Table, outcome: Outcome) -> bool:
    """Whether all rows are kept in their order, as after most mappers."""
    lost = outcome.dropped or outcome.quarantined
    there = ROW in outcome.table.column_names
    return not lost and there and bool(outcome.table[ROW].equals(table[ROW]))


def _check_conserved(stage: Stage, table: pa.Table, outcome: Outcome) -> None:
    if ROW not in outcome.table.column_names:
        raise OperatorError(f"operator '{stage.name}' dropped column '{ROW}'; operators must keep columns.")
    kept = row_numbers(outcome.table)
    after = np.sort(np.concatenate([kept, _keys(outcome.dropped), _keys(outcome.quarantined)]))
    if not np.array_equal(after, row_numbers(table)):
        raise OperatorError(
            f"operator '{stage.name}' turned {table.num_rows} rows into {len(after)} "
            f"({len(kept)} kept, {len(outcome.dropped)} dropped, {len(outcome.quarantined)} quarantined), "
            "or replaced some; wanted every row exactly once. Operators that multiply or merge rows "
            "cannot run in a pipeline: run them with dj-process."
        )


def _kept_unjudged(table: pa.Table, outcome: Outcome) -> Outcome:
    """Keep the rows that the operator failed on, with nulls in the columns that it adds."""
    failed = table.filter(np.isin(row_numbers(table), _keys(outcome.quarantined)))
    table = joined([outcome.table, failed])
    return Outcome(table, outcome.dropped, {}, outcome.quarantined)


def _attempt(stage: Stage, table: pa.Table) -> Outcome:
    try:
        return stage.attempt(table)
    except RowError as err:
        failure = f"{stage.name}: {type(err).__name__}: {masked(str(err))}"
    except (RftError, MemoryError):
        raise
    except Exception as err:  # noqa: BLE001  user code: the failure is recorded at the row
        failure = f"{stage.name}: {type(err).__name__}: {masked(str(err))}"
    halves = stage.parts(table, 2)
    if len(halves) < 2:
        return all_failed(table, failure)
    return merge([_attempt(stage, half) for half in halves])


def all_failed(table: pa.Table, failure: str) -> Outcome:
    """The outcome of an operator that fails on every row for one reason."""
    return Outcome(table.slice(0, 0), {}, dict.fromkeys(row_numbers(table).tolist(), failure))


def dropped_too(outcome: Outcome, reasons: Mapping[int, str]) -> Outcome:
    """`outcome` with further rows dropped. Args: reasons: row number to reason."""
    stays = ~np.isin(row_numbers(outcome.table), _keys(reasons))
    return replace(marked(outcome, reasons), table=outcome.table.filter(pa.array(stays)))


def marked(outcome: Outcome, reasons: Mapping[int, str]) -> Outcome:
    """`outcome` with further rows named as dropped, which its table still has."""
    return replace(
        outcome,
        dropped={**outcome.dropped, **reasons},
        unjudged={row: why for row, why in outcome.unjudged.items() if row not in reasons},
    )


def merge(parts: Sequence[Outcome]) -> Outcome:
    """Join the outcomes of the parts of a table."""
    return Outcome(
        joined([part.table for part in parts]),
        {row: why for part in parts for row, why in part.dropped.items()},
        {row: why for part in parts for row, why in part.quarantined.items()},
    )


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables, null where a table lacks a column; empty tables add no columns."""
    some = [table for table in tables if table.num_rows] or [tables[0]]
    return pa.concat_tables(some, promote_options="permissive")


def row_parts(table: pa.Table, count: int) -> Sequence[pa.Table]:
    """`table` cut into at most `count` parts of about the same number of rows."""
    count = max(1, min(count, table.num_rows))
    edges = [table.num_rows * number // count for number in range(count + 1)]
    return [table.slice(low, high - low) for low, high in pairwise(edges)]


def row_numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """Column ROW."""
    numbers: npt.NDArray[np.int64] = table[ROW].to_numpy()
    return numbers


def _keys(rows: Mapping[int, str]) -> npt.NDArray[np.int64]:
    return np.fromiter(rows, np.int64, len(rows))
