"""The negative control: rewards that say nothing of the answers they belong to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowMapper
from ops.grouping import Groups
from ops.rewards.effective import SHAPED, effective_rewards, with_shaped_reward


@OPERATORS.register_module("shuffled_rewards_mapper")
class ShuffledRewardsMapper(ArrowMapper, Pipeline):
    """Writes `shaped_reward`: the rewards of each group, dealt to its rows in an order that their ids make.

    A group has the rewards it had, and so advantages of the same size; which answer has which is chance.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward", "experience_id")
    optional_columns = (SHAPED,)

    def process_table(self, table: pa.Table) -> pa.Table:
        """Deal the rewards of each group anew."""
        rewards = effective_rewards(table)
        codes = Groups.of(table, GROUP_KEY).codes
        ids = table["experience_id"].to_pylist()
        chance = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in ids], np.uint64)
        dealt = np.empty_like(rewards)
        dealt[np.lexsort((chance, codes))] = rewards[np.argsort(codes, kind="stable")]
        return with_shaped_reward(table, dealt)
