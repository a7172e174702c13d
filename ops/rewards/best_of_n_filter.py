"""`best_of_n_filter`: keeps the best rollouts of each group, for supervised fine-tuning."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.grouping import Groups
from ops.rewards.effective import effective_rewards, in_stored_precision
from ops.rollouts import LENGTH_COLUMNS, ROLLOUT_COLUMNS, Rollouts, answer_lengths, id_ranks, place_in_group


@OPERATORS.register_module("best_of_n_filter")
class BestOfNFilter(ArrowFilter, Pipeline):
    """Keeps the `k` best rollouts of each group whose reward is at least `min_reward` (rejection sampling).

    Best is the highest reward, then the shortest (sampled tokens; characters in groups where those are
    not known), then the first by `experience_id` (RAFT, arXiv:2304.06767). A rollout's reward is
    `shaped_reward`, else `reward`, of its last turn, its length that of all turns; all turns stay or go.
    A group of one is kept if its reward is high enough; a rollout without a reward never is.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = (
        "shaped_reward", "experience_id", "completion_text", *ROLLOUT_COLUMNS, *LENGTH_COLUMNS,
    )  # fmt: skip

    def __init__(self, k: int = 1, min_reward: float | None = None, *args: object, **kwargs: object) -> None:
        """k: rollouts to keep of each group (>= 1); min_reward: None: no lower bound."""
        super().__init__(*args, **kwargs)
        if k < 1:
            raise ValueError(f"k is {k}; wanted a whole number >= 1")
        self.k = k
        self.min_reward = -np.inf if min_reward is None else min_reward

    def judge(self, table: pa.Table) -> Judgement:
        """Rank the rollouts of each group."""
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        rewards = effective_rewards(table)[rollouts.last]
        lengths = np.bincount(rollouts.codes, answer_lengths(table, groups))
        worth = np.where(np.isnan(rewards), -np.inf, rewards)
        place = place_in_group(rollouts.group, -worth, lengths, id_ranks(table)[rollouts.last])
        least = in_stored_precision(table, self.min_reward)
        passed = ~np.isnan(rewards) & (rewards >= least)
        keep = ((place < self.k) & passed)[rollouts.codes]
        reasons = []
        for rollout in rollouts.codes[~keep].tolist():
            if np.isnan(rewards[rollout]):
                reasons.append("no reward")
            elif not passed[rollout]:
                reasons.append(f"reward {rewards[rollout]:.6g} is below {least:.6g}")
            else:
                reasons.append(f"place {place[rollout] + 1} of its group, {self.k} are kept")
        return Judgement(keep, reasons)
