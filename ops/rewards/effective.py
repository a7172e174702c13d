"""Rewards as operators read them: what counts, what is correct, and how a shaped reward is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.base import GROUP_KEY, append_or_replace, floats
from ops.grouping import Groups
from ops.rollouts import Rollouts
from rft_data.core import effective_reward

Array = npt.NDArray[np.float64]

SHAPED = effective_reward.SHAPED_REWARD
"""Optional column of every operator that reads `reward`."""


def effective_rewards(table: pa.Table) -> Array:
    """`shaped_reward` where that is set, else `reward`: N values in fp64, NaN where there is neither.

    Raises: ValueError for a value that is not finite.
    """
    return floats(pa.table({"reward": effective_reward.effective_rewards(table)}), "reward")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The rewards by which a group's rollouts are compared: one for each of R rollouts, not of N rows."""

    rewards: Array
    """R effective rewards, of the last row of each rollout; NaN where it has none."""
    groups: Groups
    """Groups of the rollouts."""
    rows: npt.NDArray[np.int64]
    """N rollout numbers: `values[rows]` gives every row of a rollout its rollout's value."""
    last: npt.NDArray[np.int64]
    """R row numbers: the last row of each rollout."""

    @classmethod
    def of(cls, table: pa.Table) -> Outcomes:
        """The outcomes of every group in `table`.

        Raises: ValueError for a reward that is not finite, or a turn that is there twice.
        """
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        rewards = effective_rewards(table)[rollouts.last]
        return cls(rewards, Groups(rollouts.group, groups.count), rollouts.codes, rollouts.last)


def in_stored_precision(table: pa.Table, bound: float) -> float:
    """A least value as the columns of `effective_rewards` hold it: a reward equal to it is not below it."""
    columns = [name for name in ("reward", SHAPED) if name in table.column_names]
    single = any(table[name].type == pa.float32() for name in columns)
    return min(bound, float(np.float32(bound))) if single else bound


def correct_rows(table: pa.Table, threshold: float) -> npt.NDArray[np.bool_]:
    """Whether the effective reward is at least `threshold`; False without one.

    Raises: ValueError for a reward that is not finite.
    """
    correct: npt.NDArray[np.bool_] = effective_rewards(table) >= in_stored_precision(table, threshold)
    return correct


def with_shaped_reward(table: pa.Table, rewards: Array) -> pa.Table:
    """`table` with `shaped_reward` (float32), null where `rewards` is NaN."""
    column = pa.array(rewards, pa.float32(), mask=np.isnan(rewards))
    return append_or_replace(table, SHAPED, column)
