"""`task_priority_mapper`: one number by which tasks are ordered or cut to the best."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import ArrowMapper, append_or_replace, floats


@OPERATORS.register_module("task_priority_mapper")
class TaskPriorityMapper(ArrowMapper, Pipeline):
    """Writes `priority`, the weighted sum of number columns, each scaled to [0, 1] over the batch.

    A negative weight prefers small values. A missing value counts as the middle of its column (0.5), and so
    does every value of a column in which all are equal. Curation stores tasks by falling priority;
    Data-Juicer's `topk_specified_field_selector: {field_key: priority, topk: N}` keeps the first N.
    Raises ValueError for a value that is not finite.
    """

    whole_batch = True

    def __init__(self, weights: dict[str, float] | None = None, *args: object, **kwargs: object) -> None:
        """weights: column to weight; None: `{learnability: 1.0}`, which task_difficulty_mapper writes.

        Raises: ValueError for an empty mapping, or a weight that is not finite.
        """
        super().__init__(*args, **kwargs)
        weights = {"learnability": 1.0} if weights is None else weights
        if not weights or not all(math.isfinite(weight) for weight in weights.values()):
            raise ValueError(f"weights is {weights}; wanted at least one column with a finite weight")
        self.weights = weights
        self.required_columns = tuple(weights)

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the column."""
        total = np.zeros(table.num_rows)
        for name, weight in self.weights.items():
            total += weight * _scaled(floats(table, name))
        return append_or_replace(table, "priority", pa.array(total))


def _scaled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values between the column's least (0) and greatest (1); NaN is in the middle."""
    known = values[~np.isnan(values)]
    if not len(known) or known.min() == known.max():
        return np.full(len(values), 0.5)
    scaled: npt.NDArray[np.float64] = (values - known.min()) / (known.max() - known.min())
    return np.where(np.isnan(values), 0.5, scaled)
