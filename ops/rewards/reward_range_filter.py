"""`reward_range_filter`: keeps rows whose reward is known and within bounds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Filter

from ops.base import ArrowFilter, Judgement
from ops.rewards.effective import SHAPED, in_stored_precision
from rft_data.core.effective_reward import effective_rewards


@OPERATORS.register_module("reward_range_filter")
class RewardRangeFilter(ArrowFilter, Filter):
    """Keeps a row when min_reward <= r <= max_reward; r is `shaped_reward` where set, else `reward`.

    A missing reward is dropped with the reason it is missing; NaN is outside every range. Each row
    is judged alone, so group sizes do not matter and groups may become ragged; in our pipeline the other
    turns of a row's rollout go with it. For the rewards of step-wise rollouts see invalid_reward_filter.
    """

    required_columns = ("reward",)
    optional_columns = (SHAPED, "unscored_reason")

    def __init__(
        self,
        min_reward: float | None = None,
        max_reward: float | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        """Bounds are inclusive; None: no bound on that side.

        Raises: ValueError if min_reward is above max_reward.
        """
        super().__init__(*args, **kwargs)
        self.min_reward = -np.inf if min_reward is None else min_reward
        self.max_reward = np.inf if max_reward is None else max_reward
        if self.min_reward > self.max_reward:
            raise ValueError(f"min_reward {min_reward} is above max_reward {max_reward}; wanted min <= max")

    def judge(self, table: pa.Table) -> Judgement:
        """Keep rows with a reward inside the bounds, compared in the precision the reward is stored in."""
        column = effective_rewards(table)
        low, high = (
            in_stored_precision(table, self.min_reward),
            -in_stored_precision(table, -self.max_reward),
        )
        values = column.cast(pa.float64()).to_numpy()
        keep = (values >= low) & (values <= high)
        dropped = np.flatnonzero(~keep)
        missing = column.is_null().to_numpy()
        why = table["unscored_reason"].take(dropped) if "unscored_reason" in table.column_names else None
        reasons = []
        for place, row in enumerate(dropped):
            if not missing[row]:
                reasons.append(f"reward {values[row]:.6g} is not in [{low:.6g}, {high:.6g}]")
            else:
                cause = why[place].as_py() if why is not None else None
                reasons.append(f"no reward: {cause or 'not scored'}")
        return Judgement(keep, reasons)
