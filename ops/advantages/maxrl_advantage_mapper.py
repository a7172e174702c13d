"""`maxrl_advantage_mapper`: maximum-likelihood reinforcement learning."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes, in_stored_precision


@OPERATORS.register_module("maxrl_advantage_mapper")
class MaxrlAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = (c - p) / p, c = 1 if r >= `correct` else 0, p the group's mean of c.

    The estimator of MaxRL (arXiv:2602.02710): the mean over the successes alone, less the score's mean,
    which approaches the gradient of log pass rate, so hard tasks weigh more than with r - mean. A group
    without a success, without a failure, or of one gets 0.0; a rollout without a reward gets a null. r is
    `shaped_reward` where set, else `reward`.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, correct: float = 1.0, *args: object, **kwargs: object) -> None:
        """correct: smallest reward of a right answer."""
        super().__init__(*args, **kwargs)
        self.correct = correct

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        known = ~np.isnan(found.rewards)
        success = np.where(known, found.rewards >= in_stored_precision(table, self.correct), np.nan)
        rate = found.groups.moments(success).mean[found.groups.codes]
        advantage = np.where(rate > 0, (success - rate) / np.where(rate > 0, rate, 1.0), 0.0)
        return with_advantage(table, np.where(known, advantage, np.nan)[found.rows])
