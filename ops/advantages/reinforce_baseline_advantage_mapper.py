"""`reinforce_baseline_advantage_mapper`: REINFORCE++ with the group's mean as the baseline."""

from __future__ import annotations

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, batch_std, standardised, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes


@OPERATORS.register_module("reinforce_baseline_advantage_mapper")
class ReinforceBaselineAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = (r - group mean) / (std + eps), std over the batch of all r - group mean.

    REINFORCE++-baseline (arXiv:2501.03262): the group only centres, the batch scales. The mean over the
    batch of r - group mean is 0 already; std has ddof=1 and counts rollouts, not tokens. r is
    `shaped_reward` where set, else `reward`; a rollout without one takes no part and gets a null. A group of
    one, or of equal rewards, gets 0.0. The batch is the groups judged together: a round of a synchronous
    run (a round of refills by itself), a whole dataset under dj-process; other runs judge groups one by one
    and refuse this operator. Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    whole_batch = True
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, eps: float = 1e-8, *args: object, **kwargs: object) -> None:
        """eps: added to the std, in units of reward (>= 0)."""
        super().__init__(*args, **kwargs)
        if not eps >= 0:
            raise ValueError(f"eps is {eps}; wanted a number >= 0")
        self.eps = eps

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        centred = standardised(found.rewards, found.groups, scaled=False, eps=0.0)
        return with_advantage(table, (centred / (batch_std(centred) + self.eps or 1.0))[found.rows])
