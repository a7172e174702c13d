"""`length_shaping_mapper`: prefers the shorter of a group's correct answers."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowMapper
from ops.grouping import Groups
from ops.rewards.effective import correct_rows, effective_rewards, with_shaped_reward
from ops.rollouts import LENGTH_COLUMNS, ROLLOUT_COLUMNS, Rollouts, completion_tokens

Array = npt.NDArray[np.float64]
Rule = Literal["kimi", "efficient", "lead"]


@OPERATORS.register_module("length_shaping_mapper")
class LengthShapingMapper(ArrowMapper, Pipeline):
    """Writes `shaped_reward` from the reward r and the sampled tokens L of a rollout, within its group.

    kimi (Kimi k1.5, arXiv:2501.12599, section 2.3.3): with s = 0.5 - (L - min L) / (max L - min L) over
    the group, r + weight * s if correct, r + weight * min(0, s) if not; s = 0 when all are equally long.
    efficient (arXiv:2502.04463): r * (1 - weight * sigmoid(z)) if correct, else r.
    lead (GRPO-LEAD, arXiv:2504.09696): r * exp(-weight * z) if correct, else r.
    z = (L - mean) / std (ddof=0) over the group's correct rollouts; 0 when these are one, or equally long.

    Correct means r >= `correct`; r is `shaped_reward` where set, else `reward`. Of a rollout of
    several turns L is the sum over them and r the last one's, which alone is shaped; earlier turns keep
    theirs. A rollout without r keeps a null and takes no part. A group of one has s = 0 or z = 0. Raises
    ValueError for a reward that is not finite, a rollout with a reward whose tokens are not all known, and
    a turn that is there twice.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ("shaped_reward", *ROLLOUT_COLUMNS, *LENGTH_COLUMNS)

    def __init__(
        self, rule: Rule = "kimi", weight: float = 0.0, correct: float = 1.0, *args: object, **kwargs: object
    ) -> None:
        """weight: strength (> 0, at most 1 for `efficient`); correct: smallest reward of a right answer."""
        super().__init__(*args, **kwargs)
        if rule not in get_args(Rule) or not 0 < weight <= (1 if rule == "efficient" else np.inf):
            raise ValueError(
                f"rule is {rule!r} and weight {weight}; wanted rule {', '.join(get_args(Rule))} and "
                "weight > 0 (at most 1 for 'efficient')"
            )
        self.rule = rule
        self.weight = weight
        self.correct = correct

    def process_table(self, table: pa.Table) -> pa.Table:
        """Shape the rewards, in fp64."""
        rewards = effective_rewards(table)
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        last = rollouts.last
        lengths = np.bincount(rollouts.codes, completion_tokens(table), len(last)).astype(np.float64)
        rollout_groups = Groups(rollouts.group, groups.count)
        rewards[last] = self._shaped(
            rewards[last], lengths, correct_rows(table, self.correct)[last], rollout_groups
        )
        return with_shaped_reward(table, rewards)

    def _shaped(
        self, rewards: Array, lengths: Array, correct: npt.NDArray[np.bool_], groups: Groups
    ) -> Array:
        """By rollout: the shaped reward, NaN for one without a reward."""
        if (np.isnan(lengths) & ~np.isnan(rewards)).any():
            raise ValueError(
                "a rollout has a reward but not all its tokens are known; its length is not: drop it before"
            )
        lengths = np.where(np.isnan(rewards), np.nan, lengths)
        if self.rule == "kimi":
            share = _relative_shortness(lengths, groups)
            return rewards + self.weight * np.where(correct, share, np.minimum(share, 0.0))
        z = _standard_scores(np.where(correct, lengths, np.nan), groups)
        if self.rule == "efficient":
            factor = 1.0 - self.weight / (1.0 + np.exp(-z))
        else:
            factor = np.exp(-self.weight * z)
        return np.where(correct, rewards * factor, rewards)


def _relative_shortness(lengths: Array, groups: Groups) -> Array:
    """0.5 for the shortest of a group, -0.5 for the longest, 0.0 where all are equal; NaN stays."""
    known = ~np.isnan(lengths)
    shortest, longest = np.full(groups.count, np.inf), np.full(groups.count, -np.inf)
    np.minimum.at(shortest, groups.codes[known], lengths[known])
    np.maximum.at(longest, groups.codes[known], lengths[known])
    span = np.where(longest > shortest, longest - shortest, np.nan)[groups.codes]
    share = 0.5 - (lengths - shortest[groups.codes]) / span
    return np.where(known & np.isnan(span), 0.0, share)


def _standard_scores(lengths: Array, groups: Groups) -> Array:
    """(L - mean) / std (ddof=0) of each group's known lengths; 0.0 where they are equal."""
    moments = groups.moments(lengths)
    std = moments.std(ddof=0)
    centred = lengths - moments.mean[groups.codes]
    return np.where((std > 0)[groups.codes], centred / np.where(std > 0, std, 1.0)[groups.codes], 0.0)
