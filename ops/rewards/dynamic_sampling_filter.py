"""`dynamic_sampling_filter`: drops groups that are all correct or all wrong (DAPO)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.grouping import Groups
from ops.rewards.effective import SHAPED, correct_rows, effective_rewards
from ops.rollouts import ROLLOUT_COLUMNS, Rollouts


@OPERATORS.register_module("dynamic_sampling_filter")
class DynamicSamplingFilter(ArrowFilter, Pipeline):
    """Keeps a group when min_accuracy < accuracy < max_accuracy (DAPO, arXiv:2503.14476, equation 11).

    Accuracy is the share of the group's scored rollouts with r >= `correct`; r is `shaped_reward` where
    an operator before set it, else `reward`, of the last turn. A group of one is all right or all wrong,
    and dropped; so is a group without a reward. A rollout without a reward stays with its group. Nothing
    is resampled here: a dropped group is in no lease, so admission starts another group.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = (SHAPED, *ROLLOUT_COLUMNS)

    def __init__(
        self,
        correct: float = 1.0,
        min_accuracy: float = 0.0,
        max_accuracy: float = 1.0,
        *args: object,
        **kwargs: object,
    ) -> None:
        """correct: smallest reward of a right answer; the bounds, both exclusive, are in [0, 1]."""
        super().__init__(*args, **kwargs)
        if not 0 <= min_accuracy < max_accuracy <= 1:
            raise ValueError(
                f"min_accuracy is {min_accuracy} and max_accuracy {max_accuracy}; wanted 0 <= min < max <= 1"
            )
        self.correct = correct
        self.min_accuracy = min_accuracy
        self.max_accuracy = max_accuracy

    def judge(self, table: pa.Table) -> Judgement:
        """Keep the groups between the bounds."""
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        correct = correct_rows(table, self.correct)[rollouts.last]
        known = ~np.isnan(effective_rewards(table))[rollouts.last]
        scored = np.bincount(rollouts.group, known, groups.count)
        solved = np.bincount(rollouts.group, correct, groups.count)
        accuracy = solved / np.maximum(scored, 1)
        good = (scored > 0) & (accuracy > self.min_accuracy) & (accuracy < self.max_accuracy)
        keep = good[groups.codes]
        bounds = f"({self.min_accuracy:g}, {self.max_accuracy:g})"
        reasons = [
            f"{solved[code]:g} of {scored[code]:g} rollouts of the group are correct: not in {bounds}"
            if scored[code]
            else "no rollout of the group has a reward"
            for code in groups.codes[~keep]
        ]
        return Judgement(keep, reasons)
