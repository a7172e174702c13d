"""`asymre_advantage_mapper`: asymmetric REINFORCE for off-policy rollouts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes


@OPERATORS.register_module("asymre_advantage_mapper")
class AsymreAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = r - (group mean + baseline_shift) (AsymRE, arXiv:2506.20520).

    A negative shift stresses successes over failures, which keeps off-policy REINFORCE stable. r is
    `shaped_reward` where set, else `reward`; a rollout without one takes no part and gets a null. In a
    group of one, or of equal rewards, every row gets -baseline_shift, as the formula says: put
    reward_variance_filter before where that is not wanted.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, baseline_shift: float = -0.1, *args: object, **kwargs: object) -> None:
        """baseline_shift: added to the mean, in units of reward; the paper's delta V, negative or 0."""
        super().__init__(*args, **kwargs)
        if not -np.inf < baseline_shift <= 0:
            raise ValueError(
                f"baseline_shift is {baseline_shift}; wanted a finite number <= 0: above 0 the policy "
                "collapses, which is the paper's finding"
            )
        self.baseline_shift = baseline_shift

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        baseline = found.groups.moments(found.rewards).mean + self.baseline_shift
        advantage = found.rewards - baseline[found.groups.codes]
        return with_advantage(table, advantage[found.rows])
