"""`gigpo_advantage_mapper`: group-in-group advantages of multi-turn agents."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import ADVANTAGE_COLUMNS, standardised, with_advantage
from ops.base import GROUP_KEY, ArrowMapper
from ops.grouping import Groups
from ops.rewards.effective import effective_rewards
from ops.rollouts import Rollouts

Array = npt.NDArray[np.float64]
Scale = Literal["group", "none"]


@OPERATORS.register_module("gigpo_advantage_mapper")
class GigpoAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage` = A_E + omega * A_S for each turn (GiGPO, arXiv:2505.10978).

    A_E: the rollout's return (the sum of its turns' rewards), standardised over the group's rollouts.
    A_S: the turn's discounted return-to-go sum_k gamma^k r_(t+k), standardised over the group's turns
    that started from the same `environment` state (the anchor group).
    Standardised is (x - mean) / (std + eps), std with ddof=1, or x - mean with scale="none" (both are
    the paper's). An anchor group of one turn, or a turn without a state, has A_S = 0.0; a group of one
    rollout A_E = 0.0. r is `shaped_reward` where set, else `reward`; a turn without one counts 0.0
    (sparse rewards), a rollout whose last turn has none takes no part and its rows get nulls.
    Raises ValueError for a reward that is not finite, or a turn that is there twice.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward", "member", "turn", "environment")
    optional_columns = ADVANTAGE_COLUMNS

    def __init__(
        self,
        omega: float = 1.0,
        gamma: float = 0.95,
        scale: Scale = "group",
        eps: float = 1e-4,
        *args: object,
        **kwargs: object,
    ) -> None:
        """omega: weight of A_S (>= 0); gamma: discount a turn, in (0, 1]; eps: added to the std (>= 0)."""
        super().__init__(*args, **kwargs)
        if scale not in get_args(Scale) or not (omega >= 0 and 0 < gamma <= 1 and eps >= 0):
            raise ValueError(
                f"omega is {omega}, gamma {gamma}, scale {scale!r} and eps {eps}; wanted omega >= 0, "
                "0 < gamma <= 1, scale group or none, and eps >= 0"
            )
        self.omega = omega
        self.gamma = gamma
        self.scale = scale
        self.eps = eps

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        rewards = effective_rewards(table)
        scored = ~np.isnan(rewards[rollouts.last])
        rewards = np.where(np.isnan(rewards), 0.0, rewards)
        total = np.where(scored, np.bincount(rollouts.codes, rewards), np.nan)
        episode = self._standardised(total, Groups(rollouts.group, groups.count))[rollouts.codes]
        to_go = _returns_to_go(rewards, rollouts, rollouts.in_turn_order(table), self.gamma)
        to_go = np.where(scored[rollouts.codes], to_go, np.nan)
        step = self._standardised(to_go, _anchors(table, groups))
        return with_advantage(table, episode + self.omega * step)

    def _standardised(self, values: Array, groups: Groups) -> Array:
        return standardised(values, groups, scaled=self.scale == "group", eps=self.eps)


def _returns_to_go(rewards: Array, rollouts: Rollouts, order: npt.NDArray[np.int64], gamma: float) -> Array:
    """Discounted sum of each turn's reward and those after it; all rollouts at once, from their ends."""
    codes = rollouts.codes[order]
    ends = np.searchsorted(codes, codes, side="right")
    from_end = ends - 1 - np.arange(len(codes))
    by_distance = np.argsort(from_end, kind="stable")
    cuts: list[int] = np.cumsum(np.bincount(from_end)).tolist()
    returns = rewards[order]
    for first, last in pairwise(cuts):
        turns = by_distance[first:last]
        returns[turns] += gamma * returns[turns + 1]
    out = np.empty_like(returns)
    out[order] = returns
    return out


def _anchors(table: pa.Table, groups: Groups) -> Groups:
    """Turns of one group that started from the same state; a turn without a state is alone."""
    known = pa.table({"environment": table["environment"].fill_null("")})
    states = Groups.of(known, "environment").codes
    unknown = table["environment"].is_null().to_numpy()
    keys = groups.codes * (table.num_rows + 1) + states
    keys[unknown] = -1 - np.flatnonzero(unknown)
    found, codes = np.unique(keys, return_inverse=True)
    return Groups(codes.astype(np.int64), len(found))
