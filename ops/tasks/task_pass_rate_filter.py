"""`task_pass_rate_filter`: retires tasks that are solved and drops those that never are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Filter

from ops.base import ArrowFilter, Judgement
from rft_data.tasks.record import PLAYED, tally
from rft_data.tasks.table import held_out


@OPERATORS.register_module("task_pass_rate_filter")
class TaskPassRateFilter(ArrowFilter, Filter):
    """Keeps a task while min_pass_rate < passes / rollouts < max_pass_rate, or fewer rollouts are known.

    The rate is not smoothed: `min_rollouts` says how much evidence it takes. Rewards in (0, 1) count in
    part, rollouts without a reward not at all. With a `window` evidence ends: a task that is not played
    because it was dropped has too few recent rollouts after `window` optimizer steps, is kept again, and
    so comes back when the policy has lost it. Tasks that were never played or are held out are kept.
    """

    required_columns = tuple(PLAYED.names)
    optional_columns = ("split",)

    def __init__(
        self,
        min_pass_rate: float = 0.0,
        max_pass_rate: float = 1.0,
        min_rollouts: int = 16,
        window: int | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        """Bounds are exclusive: 0 and 1 drop tasks of one outcome only.

        Args:
            min_rollouts: scored rollouts from which a task is judged.
            window: only groups of the last `window` optimizer steps; None: all, imported ones too.
        Raises: ValueError if the bounds are not 0 <= min < max <= 1, or a number is below 1.
        """
        super().__init__(*args, **kwargs)
        if not 0 <= min_pass_rate < max_pass_rate <= 1:
            raise ValueError(
                f"min_pass_rate is {min_pass_rate}, max_pass_rate {max_pass_rate}; wanted 0 <= min < max <= 1"
            )
        if min_rollouts < 1 or (window is not None and window < 1):
            raise ValueError(
                f"min_rollouts is {min_rollouts} and window {window}; wanted both to be at least 1"
            )
        self.min_pass_rate = min_pass_rate
        self.max_pass_rate = max_pass_rate
        self.min_rollouts = min_rollouts
        self.window = window

    def judge(self, table: pa.Table) -> Judgement:
        """Drop the tasks whose record is enough and out of bounds."""
        passes, rollouts = tally(table, self.window)
        rate = passes / np.maximum(rollouts, 1)
        known = (rollouts >= self.min_rollouts) & ~held_out(table)
        solved = known & (rate >= self.max_pass_rate)
        unsolved = known & (rate <= self.min_pass_rate)
        reasons = []
        for row in np.flatnonzero(solved | unsolved):
            which = "solved" if solved[row] else "unsolved"
            reasons.append(f"{which}: pass rate {rate[row]:.3g} of {rollouts[row]} rollouts")
        return Judgement(~(solved | unsolved), reasons)
