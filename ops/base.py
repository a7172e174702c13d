"""Base classes of our operators: the Arrow core, and the methods that Data-Juicer calls.

`class MyFilter(ArrowFilter, Filter)` judges single rows; with `Pipeline` instead of `Filter` and
`group_key` set, whole groups. Our runtime (`ops.runtime.pipeline`), `dj-process` and Data-Juicer on Ray all
call the same core. This module imports no data_juicer, so that any import order registers operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

GROUP_KEY = "group_id"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A filter's decision about N rows."""

    keep: npt.NDArray[np.bool_]
    """N values, True for a row that stays."""
    reasons: Sequence[str]
    """One reason for each dropped row, in row order."""


class ArrowOperator:
    """Base of filters and mappers: which columns, groups and store an operator works on."""

    group_key: ClassVar[str | None] = None
    whole_batch: bool = False
    """Whether it compares rows of different groups: then a batch is never split, whatever `group_key` is."""
    needs_store: bool = False
    """Whether it reads stored rows: those of the attached buffer, else of the one `buffer` names."""
    store: object = None
    """The attached buffer, to be read only: `read`, `batches`, `take`."""
    buffer: str | None = None
    """URI of the buffer to read when none is attached (dj-process); an operator's own argument."""
    required_columns: tuple[str, ...] = ()
    optional_columns: tuple[str, ...] = ()
    _batched_op = True

    def attach(self, store: object) -> None:
        """Set the buffer to read. A pipeline that has a store calls this once, before the first row."""
        self.store = store

    @property
    def is_global_operation(self) -> bool:
        """Tells Data-Juicer's partitioned executor that groups must not be split."""
        return self.whole_batch or self.group_key is not None


class ArrowFilter(ArrowOperator):
    """Mix-in of operators that drop rows: implement `judge`."""

    def judge(self, table: pa.Table) -> Judgement:
        """Decide about every row of `table`. With a group key, `table` holds whole groups."""
        raise NotImplementedError

    def process_table(self, table: pa.Table) -> pa.Table:
        """The rows that `judge` keeps."""
        return table.filter(pa.array(self.judge(table).keep))

    def compute_stats_batched(self, samples: object, *_: object, **__: object) -> object:
        """Data-Juicer's first pass over a filter; ours need none."""
        return samples

    def process_batched(self, samples: Mapping[str, Sequence[object]]) -> list[bool]:
        """Data-Juicer's second pass: keep or drop, one value for each sample."""
        keep: list[bool] = self.judge(_read_columns(self, samples)).keep.tolist()
        return keep

    def run(
        self, dataset: Any, *, exporter: object = None, tracer: object = None, reduce: bool = True
    ) -> Any:
        """Apply to a Hugging Face, Nested or Ray dataset; `reduce=False` (dj-analyze) keeps all rows."""
        if not reduce:
            return dataset
        if is_ray(dataset):
            return _run_on_ray(self, dataset)
        return dataset.select(np.flatnonzero(self.judge(_arrow_view(self, dataset)).keep))


class ArrowMapper(ArrowOperator):
    """Mix-in of operators that add or replace columns: implement `process_table`."""

    def process_table(self, table: pa.Table) -> pa.Table:
        """The same rows in the same order, with columns added or replaced."""
        raise NotImplementedError

    def process_batched(self, samples: Mapping[str, Sequence[object]]) -> dict[str, object]:
        """Data-Juicer's pass over a batch of samples."""
        return {**samples, **self.process_table(_read_columns(self, samples)).to_pydict()}

    def run(self, dataset: Any, *, exporter: object = None, tracer: object = None) -> Any:
        """Apply to a Hugging Face, Nested or Ray dataset; untouched columns keep their Arrow type."""
        if is_ray(dataset):
            return _run_on_ray(self, dataset)
        before = _arrow_view(self, dataset)
        after = self.process_table(before)
        order = list(dict.fromkeys([*dataset.column_names, *after.column_names]))
        for name in after.column_names:
            if name in before.column_names and after[name].equals(before[name]):
                continue
            if name in dataset.column_names:
                dataset = dataset.remove_columns(name)
            dataset = dataset.add_column(name, after[name])
        return dataset.select_columns(order)


def append_or_replace(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """`table` with `column` in the place of the old one, or last when there was none."""
    place = table.schema.get_field_index(name)
    if place >= 0:
        return table.set_column(place, name, column)
    return table.append_column(name, column)


def floats(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """A number column in fp64, NaN where null.

    Raises: ValueError for a NaN or an infinity: every sum with it would be NaN or infinite too.
    """
    column = table[name]
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
    values: npt.NDArray[np.float64] = column.to_numpy().astype(np.float64)
    if np.count_nonzero(np.isfinite(values)) + column.null_count < len(values):
        raise ValueError(f"column '{name}' holds a value that is not finite; wanted a finite number or null")
    return values


def _columns(op: Any) -> list[str]:
    return list(dict.fromkeys([*op.required_columns, *op.optional_columns]))


def _read_columns(op: object, samples: Mapping[str, Sequence[object]]) -> pa.Table:
    return pa.table({name: samples[name] for name in _columns(op) if name in samples})


def _arrow_view(op: Any, dataset: Any) -> pa.Table:
    names = [name for name in _columns(op) if name in dataset.column_names]
    return dataset.select_columns(names).with_format("arrow")[:]


def is_ray(dataset: object) -> bool:
    """Whether Data-Juicer handed over a Ray dataset."""
    return type(dataset).__module__.startswith("ray.")


def _run_on_ray(op: Any, dataset: Any) -> Any:
    if op.whole_batch:
        return dataset.repartition(1).map_batches(op.process_table, batch_format="pyarrow", batch_size=None)
    if op.group_key is None:
        return dataset.map_batches(op.process_table, batch_format="pyarrow", zero_copy_batch=True)
    return dataset.groupby(op.group_key).map_groups(op.process_table, batch_format="pyarrow")
