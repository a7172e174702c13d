"""`task_difficulty_mapper`: a task's difficulty from the rollouts stored of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import ArrowMapper, append_or_replace
from rft_data.tasks.record import PLAYED, tally

OFFLINE = "offline_difficulty"
"""Column with the difficulty a task was loaded with, before any rollout changed it."""


@OPERATORS.register_module("task_difficulty_mapper")
class TaskDifficultyMapper(ArrowMapper, Pipeline):
    """Writes `difficulty` = 1 - p in (0, 1), `pass_rate` = p, `learnability` = p(1 - p), `rollouts` = n.

    p is the posterior mean (s + k m) / (n + k) of a task with s passes in n scored rollouts (a reward in
    (0, 1) counts as a part of a pass): Beta-smoothed toward m, the rate of its class, which is smoothed in
    the same way toward the rate of all tasks, and that toward 1/2. A class is a taskset with one offline
    difficulty: the one the task was loaded with, kept in `offline_difficulty`, for one that follows from a
    task's rollouts would count them twice. So a task that was never played has the difficulty of its class;
    `rollouts` says so (0). A batch in which no task was played keeps its difficulties and gets null rates.
    """

    whole_batch = True
    required_columns = ("taskset", *PLAYED.names)
    optional_columns = ("difficulty", OFFLINE)

    def __init__(
        self, window: int | None = None, prior_weight: float = 4.0, *args: Any, **kwargs: Any
    ) -> None:
        """Say which rollouts count.

        Args:
            window: only groups of the last `window` optimizer steps; None: all, imported ones too.
            prior_weight: k, the weight of the class in rollouts (> 0).
        Raises: ValueError for a window < 1 or a weight that is not positive.
        """
        super().__init__(*args, **kwargs)
        if (window is not None and window < 1) or not prior_weight > 0:
            raise ValueError(
                f"window is {window} and prior_weight {prior_weight}; wanted window >= 1 and prior_weight > 0"
            )
        self.window = window
        self.prior_weight = prior_weight

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the four columns, and that of the offline difficulty."""
        table = _with_offline(table)
        passes, rollouts = tally(table, self.window)
        table = append_or_replace(table, "rollouts", pa.array(rollouts))
        unknown = pa.array(np.full(len(rollouts), not rollouts.any()))
        rate = self._rates(table, passes, rollouts)
        for name, values in (("pass_rate", rate), ("learnability", rate * (1 - rate))):
            table = append_or_replace(table, name, pa.array(values, mask=unknown.to_numpy(False)))
        if rollouts.any():
            table = append_or_replace(table, "difficulty", pa.array(1 - rate))
        return table

    def _rates(self, table: pa.Table, passes: Any, rollouts: Any) -> Any:
        k = self.prior_weight
        overall = (passes.sum() + k / 2) / (rollouts.sum() + k)
        codes, count = _classes(table)
        class_passes = np.bincount(codes, passes, count)
        class_rate = (class_passes + k * overall) / (np.bincount(codes, rollouts, count) + k)
        return (passes + k * class_rate[codes]) / (rollouts + k)


def _with_offline(table: pa.Table) -> pa.Table:
    """`table` with OFFLINE: what an earlier pass kept, else the difficulty, null without one."""
    if OFFLINE in table.column_names:
        return table
    if "difficulty" in table.column_names:
        return table.append_column(OFFLINE, table["difficulty"])
    return table.append_column(OFFLINE, pa.nulls(table.num_rows, pa.float64()))


def _classes(table: pa.Table) -> tuple[Any, int]:
    """The class of each task, as a number, and how many classes there are."""
    numbers: dict[tuple[Any, Any], int] = {}
    pairs = zip(table["taskset"].to_pylist(), table[OFFLINE].to_pylist(), strict=True)
    codes = np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int64)
    return codes, len(numbers)
