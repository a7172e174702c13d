"""`pass_at_k_advantage_mapper`: the advantage of training for pass@k."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes, in_stored_precision

Array = npt.NDArray[np.float64]


@OPERATORS.register_module("pass_at_k_advantage_mapper")
class PassAtKAdvantageMapper(ArrowMapper, Pipeline):
    """Writes the `advantage` of pass@k training, in closed form (arXiv:2508.10751).

    Every k of the group's n scored rollouts are one trial, which succeeds if one of the k is correct
    (r >= `correct`; r is `shaped_reward` where set, else `reward`). With m wrong ones:
    R = 1 - C(m, k) / C(n, k) and s = sqrt(R (1 - R)); a correct one gets (1 - R) / s, a wrong one
    (1 - R - C(m - 1, k - 1) / C(n - 1, k - 1)) / s. Where
    s = 0 (all trials succeed, or none; a group of k or fewer; a group of one) all get 0.0. A rollout without
    a reward takes no part and gets a null. Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, k: int = 0, correct: float = 1.0, *args: object, **kwargs: object) -> None:
        """k: attempts of which one must succeed (>= 1); correct: smallest reward of a right answer."""
        super().__init__(*args, **kwargs)
        if k < 1:
            raise ValueError(f"k is {k}; wanted a whole number >= 1")
        self.k = k
        self.correct = correct

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        groups, known = found.groups, ~np.isnan(found.rewards)
        correct = found.rewards >= in_stored_precision(table, self.correct)
        size = np.bincount(groups.codes, known, groups.count)
        wrong = np.bincount(groups.codes, known & ~correct, groups.count)
        fail = _share_of_choices(wrong, size, self.k)
        spread = np.sqrt(fail * (1.0 - fail))
        of_wrong = fail - _share_of_choices(wrong - 1, size - 1, self.k - 1)
        divisor = np.where(spread > 0, spread, np.inf)[groups.codes]
        advantage = np.where(correct, fail[groups.codes], of_wrong[groups.codes]) / divisor
        return with_advantage(table, np.where(known, advantage, np.nan)[found.rows])


def _share_of_choices(part: npt.NDArray[np.generic], whole: npt.NDArray[np.generic], k: int) -> Array:
    """C(part, k) / C(whole, k), elementwise; 0.0 where part < k, and 1.0 for k = 0."""
    share: Array = np.ones(len(part))
    for chosen in range(k):
        share *= np.maximum(part - chosen, 0.0) / np.maximum(whole - chosen, 1.0)
    return share
