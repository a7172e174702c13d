"""`opmd_advantage_mapper`: the advantage of online policy mirror descent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes


@OPERATORS.register_module("opmd_advantage_mapper")
class OpmdAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = r - tau * log(mean(exp(r / tau))), the mean over the group.

    The baseline is the log-partition of arXiv:2505.17826, appendix A (after Kimi k1.5,
    arXiv:2501.12599), estimated from the group. It goes from the group's mean (tau large) to its
    maximum (tau small). r is `shaped_reward` where set, else `reward`; a rollout without one takes no part
    and gets a null. A group of one, or of equal rewards, gets 0.0.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, tau: float = 1.0, *args: object, **kwargs: object) -> None:
        """tau: temperature, in units of reward (> 0)."""
        super().__init__(*args, **kwargs)
        if not 0 < tau < np.inf:
            raise ValueError(f"tau is {tau}; wanted a finite number > 0")
        self.tau = tau

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64; exponents are at most 0, so none overflows."""
        found = Outcomes.of(table)
        rewards, groups = found.rewards, found.groups
        known = ~np.isnan(rewards)
        codes = groups.codes[known]
        best = np.full(groups.count, -np.inf)
        np.maximum.at(best, codes, rewards[known])
        below = rewards - best[groups.codes]
        size = np.maximum(np.bincount(codes, minlength=groups.count), 1)
        weight = np.bincount(codes, np.exp(below[known] / self.tau), groups.count) / size
        partition = self.tau * np.log(np.where(weight > 0, weight, 1.0))
        return with_advantage(table, (below - partition[groups.codes])[found.rows])
