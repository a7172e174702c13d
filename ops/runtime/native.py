"""Stages for Data-Juicer's own operators: they call its methods directly, without NestedDataset.map.

Operators get only text, numbers and their own stats as Python objects. Token lists and other wide columns
stay in Arrow and are joined by row number. There is no process pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ops.base import ArrowOperator, append_or_replace
from ops.runtime.hygiene import host_kept_quiet
from ops.runtime.stage import ROW, ArrowStage, BatchError, Outcome, Stage, row_numbers, row_parts
from rft_data.core.errors import OperatorError, RecipeError, RftError

if TYPE_CHECKING:
    from data_juicer.ops.base_op import OP, Deduplicator, Filter, Mapper, Selector

STATS = "__dj__stats__"
META = "__dj__meta__"
_OWN = frozenset({STATS, META})
"""Data-Juicer's struct columns: what filters measured and what mappers tagged."""

Columns = dict[str, list[Any]]


def local_stage(name: str, op: OP | ArrowOperator) -> Stage:
    """The stage that runs an operator in this process.

    Raises: RecipeError for a kind that cannot keep rows apart (Grouper, Aggregator, Pipeline).
    """
    if isinstance(op, ArrowOperator):
        return ArrowStage(name, op)
    # data_juicer is imported in functions only: its import is slow and changes the process (hygiene.py).
    from data_juicer.ops.base_op import Deduplicator, Filter, Mapper, Selector

    if isinstance(op, Filter):
        return FilterStage(name, op)
    if isinstance(op, Mapper):
        return MapperStage(name, op)
    if isinstance(op, Deduplicator):
        return DeduplicatorStage(name, op)
    if isinstance(op, Selector):
        return SelectorStage(name, op)
    raise RecipeError(
        f"operator '{name}' is a Data-Juicer {type(op).__mro__[1].__name__}, which cannot run here; "
        "wanted a Mapper, Filter, Deduplicator or Selector: run this one with dj-process."
    )


def judges_rows(stage: Stage) -> bool:
    """Whether the operator of a stage of `local_stage` judges each row alone."""
    if isinstance(stage, ArrowStage):
        return stage.by_rows
    return isinstance(stage, MapperStage | FilterStage)


class MapperStage:
    """A Mapper: changes text for later operators, or adds columns; stored rows do not change."""

    def __init__(self, name: str, op: Mapper) -> None:
        self.name = name
        self._op = op

    def attempt(self, table: pa.Table) -> Outcome:
        """Call the mapper on all rows at once, or one by one if it is written that way."""
        columns = _light(table).to_pydict()
        _start(columns, META, self._op)
        if self._op.is_batched_op():
            mapped = self._op.process_batched(_copy(columns))
        else:
            mapped = _to_columns([self._op.process_single(row) for row in _to_rows(columns)])
        return Outcome(_graft(table, columns, mapped, self.name))

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Rows are independent."""
        return row_parts(table, count)


class FilterStage:
    """A Filter: computes statistics, writes them to STATS, and drops rows by them."""

    def __init__(self, name: str, op: Filter) -> None:
        self.name = name
        self._op = op

    def attempt(self, table: pa.Table) -> Outcome:
        """Call both methods of the filter; the reason for a drop lists this filter's statistics."""
        columns = _light(table).to_pydict()
        _start(columns, STATS, self._op)
        before = _fields(table, STATS)
        measured, keep = self._judge(_copy(columns))
        out = _graft(table, columns, measured, self.name)
        stats = measured.get(STATS, [{}] * len(keep))
        reasons = {
            row: ", ".join(f"{key}={value}" for key, value in stat.items() if key not in before)
            or "did not pass"
            for row, stat, ok in zip(row_numbers(table).tolist(), stats, keep, strict=True)
            if not ok
        }
        return Outcome(out.filter(pa.array(keep)), reasons)

    def _judge(self, columns: Columns) -> tuple[Columns, list[bool]]:
        if self._op.is_batched_op():
            measured = self._op.compute_stats_batched(columns)
            return measured, [bool(ok) for ok in self._op.process_batched(measured)]
        rows = [self._op.compute_stats_single(row) for row in _to_rows(columns)]
        return _to_columns(rows), [bool(self._op.process_single(row)) for row in rows]

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Rows are independent."""
        return row_parts(table, count)


class SelectorStage:
    """A Selector: chooses among all rows; the chosen rows keep their order."""

    reason = "not selected"

    def __init__(self, name: str, op: Selector | Deduplicator) -> None:
        self.name = name
        self._op = op

    def attempt(self, table: pa.Table) -> Outcome:
        """Let the operator choose among the light columns, then take the rows it chose."""
        return self._choose(table, _light(table), {})

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Rows are judged against each other."""
        return [table]

    def _choose(self, table: pa.Table, light: pa.Table, failed: dict[int, str]) -> Outcome:
        from data_juicer.core.data import NestedDataset
        from datasets import Dataset
        from datasets.table import InMemoryTable

        try:
            with host_kept_quiet():
                chosen = self._op.process(NestedDataset(Dataset(InMemoryTable(light))))
                chosen = chosen[0] if isinstance(chosen, tuple) else chosen
                out = chosen.with_format("arrow")[:]
        except (RftError, MemoryError):
            raise
        except Exception as err:  # user code: it saw all rows, so no row can be blamed
            raise BatchError(
                f"operator '{self.name}' failed on {table.num_rows} rows it compares with each other: "
                f"{type(err).__name__}: {err}"
            ) from err
        kept = table.take(np.searchsorted(row_numbers(table), row_numbers(out)))
        for column in set(_light(table).column_names) - _OWN:
            edited = out[column].cast(table.schema.field(column).type)
            if not edited.equals(kept[column]):
                kept = append_or_replace(kept, column, edited)
        gone = set(row_numbers(table).tolist()) - set(row_numbers(out).tolist()) - failed.keys()
        return Outcome(kept, dict.fromkeys(sorted(gone), self.reason), failed)


class DeduplicatorStage(SelectorStage):
    """A Deduplicator: hashes each row alone, then keeps the first of each set of duplicates."""

    reason = "duplicate of a row that is kept"

    def attempt(self, table: pa.Table) -> Outcome:
        """Hash row by row, quarantine rows that cannot be hashed, deduplicate the rest."""
        light = _light(table)
        hashed, failed = [], {}
        for row in light.select(self._hashed_columns(light)).to_pylist():
            number = row[ROW]
            try:
                hashed.append(self._op.compute_hash(row))
            except (RftError, MemoryError):
                raise
            except Exception as err:  # noqa: BLE001  user code: the failure is recorded at the row
                failed[number] = f"{self.name}: {type(err).__name__}: {err}"
        if failed:
            light = light.filter(pa.array([row not in failed for row in row_numbers(light).tolist()]))
        if not hashed:
            return Outcome(table.slice(0, 0), {}, failed)
        for key in hashed[0].keys() - set(light.column_names):
            light = light.append_column(key, pa.array([row[key] for row in hashed]))
        return self._choose(table, light, failed)

    def _hashed_columns(self, light: pa.Table) -> list[str]:
        return [ROW, *({self._op.text_key} & set(light.column_names))]


def _light(table: pa.Table) -> pa.Table:
    """The columns a Data-Juicer text operator can read: text, numbers, flags and its own structs."""
    return table.select([f.name for f in table.schema if f.name in _OWN or _is_scalar(f.type)])


def _is_scalar(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(is_text or is_number or pa.types.is_boolean(kind))


def _start(columns: Columns, name: str, op: OP) -> None:
    """Give the operator the empty struct column it expects, as Data-Juicer's `run` would."""
    from data_juicer.ops.base_op import NON_STATS_FILTERS, TAGGING_OPS

    wanted = op._name in TAGGING_OPS.modules if name == META else op._name not in NON_STATS_FILTERS.modules
    if wanted and name not in columns:
        columns[name] = [{} for _ in columns[ROW]]


def _fields(table: pa.Table, name: str) -> set[str]:
    """Names of the fields of a struct column; empty when there is no such column."""
    return {f.name for f in table.schema.field(name).type} if name in table.column_names else set()


def _copy(columns: Columns) -> Columns:
    """A copy that the operator may change in place, so that changes can be found by comparing."""
    return {
        name: [dict(value or {}) for value in values] if name in _OWN else list(values)
        for name, values in columns.items()
    }


def _to_rows(columns: Columns) -> list[dict[str, object]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*_copy(columns).values(), strict=True)]


def _to_columns(rows: Sequence[Mapping[str, object]]) -> Columns:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _graft(table: pa.Table, before: Columns, after: Mapping[str, list[object]], name: str) -> pa.Table:
    """`table` with the columns that an operator changed or added; other columns keep their Arrow data."""
    if after.get(ROW) != before[ROW]:
        raise OperatorError(
            f"operator '{name}' turned {len(before[ROW])} rows into {len(after.get(ROW, []))}; wanted the "
            "same rows in the same order. Operators that multiply rows cannot run in a pipeline: "
            "use dj-process."
        )
    for column, values in after.items():
        if column in before and values == before[column] and column in table.column_names:
            continue
        kind = None
        if column in table.column_names and column not in _OWN:
            kind = table.schema.field(column).type
        table = append_or_replace(table, column, pa.array(values, kind))
    return table
