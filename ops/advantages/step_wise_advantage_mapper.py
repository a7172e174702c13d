"""`step_wise_advantage_mapper`: a rollout's outcome, compared within the group, for each of its turns."""

from __future__ import annotations

from typing import Literal, get_args

from data_juicer.ops.base_op import OPERATORS

from ops.advantages.grpo_advantage_mapper import GrpoAdvantageMapper
from ops.base import GROUP_KEY

Scale = Literal["group", "none"]


@OPERATORS.register_module("step_wise_advantage_mapper")
class StepWiseAdvantageMapper(GrpoAdvantageMapper):
    """Writes `advantage`: GRPO's (arXiv:2402.03300) over the last turns of the rollouts, given to every turn.

    Outcome supervision for workflows that store one row a turn: mean and std (ddof=1) count each
    rollout once, however many turns it took. scale="none" leaves out the std (arXiv:2503.20783). A
    rollout's reward is `shaped_reward`, else `reward`, of its last turn; those of earlier turns are not
    read. A rollout without one takes no part and its rows get nulls. A group of one rollout, or of
    equal rewards, gets 0.0. Raises ValueError for a reward that is not finite, or a turn that is there
    twice.
    """

    required_columns = (GROUP_KEY, "reward", "member", "turn")

    def __init__(self, scale: Scale = "group", eps: float = 1e-4, *args: object, **kwargs: object) -> None:
        """scale: divide by the group's std or not; eps: added to the std, in units of reward (>= 0)."""
        if scale not in get_args(Scale) or not eps >= 0:
            raise ValueError(f"scale is {scale!r} and eps {eps}; wanted scale group or none and eps >= 0")
        super().__init__(scale, eps, *args, **kwargs)
