"""`rloo_advantage_mapper`: REINFORCE with a leave-one-out baseline."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes


@OPERATORS.register_module("rloo_advantage_mapper")
class RlooAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = r - mean of the group's other rewards (RLOO, arXiv:2402.14740).

    With n known rewards this is n / (n - 1) * (r - mean). r is `shaped_reward` where set, else `reward`;
    a rollout without one takes no part and gets a null. A group of one has no other, and gets 0.0.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, *args: object, **kwargs: object) -> None:
        """No arguments of its own."""
        super().__init__(*args, **kwargs)

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        moments = found.groups.moments(found.rewards)
        others = np.maximum(moments.size - 1, 1)
        factor = np.where(moments.size > 1, moments.size / others, 0.0)
        codes = found.groups.codes
        advantage = factor[codes] * (found.rewards - moments.mean[codes])
        return with_advantage(table, advantage[found.rows])
