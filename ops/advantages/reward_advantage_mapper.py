"""`reward_advantage_mapper`: the reward itself as the advantage (REINFORCE without a baseline).

For algorithms that compute advantages on the whole lease (`batch_ops`, a critic) it carries the reward there.
"""

from __future__ import annotations

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import ArrowMapper
from ops.rewards.effective import effective_rewards


@OPERATORS.register_module("reward_advantage_mapper")
class RewardAdvantageMapper(ArrowMapper, Mapper):
    """A = r, the shaped reward where an operator made one (Williams 1992, doi:10.1007/BF00992696).

    A row at a time, so a group of one is like any other; a missing reward gives no advantage.
    Raises ValueError for a reward that is not finite.
    """

    required_columns = ("reward",)
    optional_columns = ADVANTAGE_COLUMNS

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, in fp64."""
        return with_advantage(table, effective_rewards(table))
