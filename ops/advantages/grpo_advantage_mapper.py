"""`grpo_advantage_mapper`: the group-relative advantage of GRPO, Dr. GRPO and Lite PPO."""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, batch_std, standardised, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes

Scale = Literal["group", "batch", "none"]


@OPERATORS.register_module("grpo_advantage_mapper")
class GrpoAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage`, a list of one float32 for each row.

    scale="group": (r - mean) / (std + eps), std with ddof=1 (GRPO, arXiv:2402.03300, as in TRL).
    scale="batch": the same with the std of all rewards of the batch (Lite PPO, arXiv:2508.08221).
    scale="none": r - mean (Dr. GRPO, arXiv:2503.20783).
    r is `shaped_reward` where that is set, else `reward`. Mean and std are over the known rewards; a
    rollout without one gets a null advantage, and the pipeline drops it. A group of one, or of equal
    rewards, gets 0.0. The batch is the groups judged together: a round of a synchronous run (a round of
    refills by itself), a whole dataset under dj-process; other runs judge groups one by one and refuse
    scale="batch". Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns: tuple[str, ...] = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, scale: Scale = "group", eps: float = 1e-4, *args: object, **kwargs: object) -> None:
        """scale: which std to divide by, if any; eps: added to the std, in units of reward (>= 0)."""
        super().__init__(*args, **kwargs)
        if scale not in get_args(Scale) or not eps >= 0:
            raise ValueError(
                f"scale is {scale!r} and eps {eps}; wanted scale {', '.join(get_args(Scale))} and eps >= 0"
            )
        self.scale = scale
        self.eps = eps
        self.whole_batch = scale == "batch"

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        advantage = standardised(found.rewards, found.groups, scaled=self.scale == "group", eps=self.eps)
        if self.scale == "batch":
            advantage = advantage / (batch_std(found.rewards) + self.eps or 1.0)
        return with_advantage(table, advantage[found.rows])
