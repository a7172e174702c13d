"""`reward_advantage_mapper`: the reward itself as the advantage (REINFORCE without a baseline).

For algorithms that compute advantages on the whole lease (`batch_ops`, a critic) it carries the reward there.
"""

from __future__ import annotations

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes


@OPERATORS.register_module("reward_advantage_mapper")
class RewardAdvantageMapper(ArrowMapper, Pipeline):
    """A = r, the shaped reward where an operator made one (Williams 1992, doi:10.1007/BF00992696).

    Nothing is compared, so a group of one is like any other; a missing reward gives no advantage.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, in fp64."""
        found = Outcomes.of(table)
        return with_advantage(table, found.rewards[found.rows])
