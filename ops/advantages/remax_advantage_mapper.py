"""`remax_advantage_mapper`: the reward of a greedy rollout as the baseline."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, with_advantage
from ops.base import GROUP_KEY, ArrowMapper, append_or_replace
from ops.rewards.effective import Outcomes


@OPERATORS.register_module("remax_advantage_mapper")
class RemaxAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = r - reward of the group's greedy rollout (ReMax, arXiv:2310.10505).

    `baseline_member` says which member of each group was decoded greedily; explorers decode member 0 so with
    `explorer.greedy_member: true`. Of several turns the last one's reward counts. The baseline's own rows
    were not sampled from the policy: they get 0.0 and are `masked`. r is `shaped_reward` where set, else
    `reward`; a row without one gets a null. A group of one is its own baseline. Raises ValueError for a group
    without a baseline that has a reward (the pipeline quarantines it), and for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward", "member", "turn")
    optional_columns = (*ADVANTAGE_COLUMNS, "masked")

    def __init__(self, baseline_member: int = 0, *args: object, **kwargs: object) -> None:
        """baseline_member: `member` of the greedy rollout, 0-based."""
        super().__init__(*args, **kwargs)
        if baseline_member < 0:
            raise ValueError(f"baseline_member is {baseline_member}; wanted a place in the group, 0-based")
        self.baseline_member = baseline_member

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add advantage and mask."""
        found = Outcomes.of(table)
        groups = found.groups
        greedy = table["member"].to_numpy() == self.baseline_member
        greedy_rollouts = np.flatnonzero(greedy[found.last])
        baseline = np.full(groups.count, np.nan)
        baseline[groups.codes[greedy_rollouts]] = found.rewards[greedy_rollouts]
        if np.isnan(baseline).any():
            row = found.last[int(np.argmax(np.isnan(baseline[groups.codes])))]
            raise ValueError(
                f"group {table[GROUP_KEY][row].as_py()!r} has no baseline: wanted a member "
                f"{self.baseline_member} with a reward"
            )
        ahead = (found.rewards - baseline[groups.codes])[found.rows]
        advantage = np.where(greedy, 0.0, ahead)
        masked = greedy
        if "masked" in table.column_names:
            masked = greedy | table["masked"].fill_null(False).to_numpy()
        return append_or_replace(with_advantage(table, advantage), "masked", pa.array(masked))
