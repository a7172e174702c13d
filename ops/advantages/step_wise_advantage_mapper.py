"""`step_wise_advantage_mapper`: a rollout's outcome, compared within the group, for each of its turns."""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, standardised, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.rewards.effective import Outcomes

Scale = Literal["group", "none"]


@OPERATORS.register_module("step_wise_advantage_mapper")
class StepWiseAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage`: GRPO's (arXiv:2402.03300) over the last turns of the rollouts, given to every turn.

    Outcome supervision for workflows that store one row a turn: mean and std (ddof=1) count each
    rollout once, however many turns it took. scale="none" leaves out the std (arXiv:2503.20783). A
    rollout's reward is `shaped_reward`, else `reward`, of its last turn; those of earlier turns are not
    read. A rollout without one takes no part and its rows get nulls. A group of one rollout, or of
    equal rewards, gets 0.0. Raises ValueError for a reward that is not finite, or a turn that is there
    twice.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward", "member", "turn")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(self, scale: Scale = "group", eps: float = 1e-4, *args: object, **kwargs: object) -> None:
        """scale: divide by the group's std or not; eps: added to the std, in units of reward (>= 0)."""
        super().__init__(*args, **kwargs)
        if scale not in get_args(Scale) or not eps >= 0:
            raise ValueError(f"scale is {scale!r} and eps {eps}; wanted scale group or none and eps >= 0")
        self.scale = scale
        self.eps = eps

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        found = Outcomes.of(table)
        advantage = standardised(found.rewards, found.groups, scaled=self.scale == "group", eps=self.eps)
        return with_advantage(table, advantage[found.rows])
