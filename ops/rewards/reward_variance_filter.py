"""`reward_variance_filter`: drops groups whose rewards are all (nearly) the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.rewards.effective import SHAPED, Outcomes
from ops.rollouts import ROLLOUT_COLUMNS


@OPERATORS.register_module("reward_variance_filter")
class RewardVarianceFilter(ArrowFilter, Pipeline):
    """Drops the whole group when std(r) <= min_std: it would give no gradient.

    r is `shaped_reward` where an operator before set it, else `reward`, of a rollout's last row; std is the
    population standard deviation (ddof=0) over the rollouts where it is known. This is the filter of DAPO's
    dynamic sampling (arXiv:2503.14476). A group of one has std 0 and is dropped; so is a group without any
    reward. A rollout without a reward stays with its group.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = (SHAPED, *ROLLOUT_COLUMNS)

    def __init__(self, min_std: float = 1e-6, *args: object, **kwargs: object) -> None:
        """min_std: largest standard deviation, in units of reward, of a group that is dropped (>= 0)."""
        super().__init__(*args, **kwargs)
        if not min_std >= 0:
            raise ValueError(f"min_std is {min_std}; wanted a number >= 0")
        self.min_std = min_std

    def judge(self, table: pa.Table) -> Judgement:
        """Keep the groups whose rewards vary."""
        found = Outcomes.of(table)
        moments = found.groups.moments(found.rewards)
        std = moments.std(ddof=0)
        groups = found.groups.codes[found.rows]
        keep = (std > self.min_std)[groups]
        reasons = [
            f"group reward std {std[code]:.3g} is not above {self.min_std:.3g}"
            if moments.size[code]
            else "no rollout of the group has a reward"
            for code in groups[~keep]
        ]
        return Judgement(np.asarray(keep), reasons)
