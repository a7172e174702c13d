"""`pass_rate_mapper`: pass rate, mean and spread of each group's rewards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowMapper, append_or_replace
from ops.grouping import Groups
from ops.rewards.effective import SHAPED, correct_rows, effective_rewards
from ops.rollouts import ROLLOUT_COLUMNS, Rollouts


@OPERATORS.register_module("pass_rate_mapper")
class PassRateMapper(ArrowMapper, Pipeline):
    """Writes `pass_rate`, `group_reward_mean`, `group_reward_std` (ddof=0) and `group_size` to every row.

    All are over the group's scored rollouts (`group_size` of them) and the r of the last turn of each:
    `shaped_reward` where an operator before set it, else `reward`. pass_rate is the share with
    r >= `correct`. A group of one has std 0.0; in a
    group without a reward the first three are null. Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = (
        SHAPED, *ROLLOUT_COLUMNS, "pass_rate", "group_reward_mean", "group_reward_std", "group_size",
    )  # fmt: skip

    def __init__(self, correct: float = 1.0, *args: object, **kwargs: object) -> None:
        """correct: smallest reward of a right answer."""
        super().__init__(*args, **kwargs)
        self.correct = correct

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the four columns."""
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        rollout_groups = Groups(rollouts.group, groups.count)
        moments = rollout_groups.moments(effective_rewards(table)[rollouts.last])
        correct = correct_rows(table, self.correct)[rollouts.last]
        solved = np.bincount(rollouts.group, correct, groups.count)
        values = {
            "pass_rate": solved / np.maximum(moments.size, 1),
            "group_reward_mean": moments.mean,
            "group_reward_std": moments.std(ddof=0),
        }
        empty = (moments.size == 0)[groups.codes]
        for name, value in values.items():
            table = append_or_replace(table, name, pa.array(value[groups.codes], pa.float64(), mask=empty))
        return append_or_replace(table, "group_size", pa.array(moments.size[groups.codes], pa.int64()))
