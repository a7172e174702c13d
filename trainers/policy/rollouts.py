"""Rows of a lease that are one rollout, the reward that counts for it, and what its rows weigh.

A rollout has one row, or several (one a turn, or one a branch), which together have the weight of one.
Losses that sum over trained tokens need no weight, because a token is trained on in one row only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.core.effective_reward import effective_rewards

Array = npt.NDArray[np.generic]


def rollout_numbers(table: pa.Table) -> npt.NDArray[np.int64]:
    """(n,) int64 numbers of the rows' rollouts, dense and 0-based.

    Rows with one (group_id, member) are one rollout; without the column `member` each row is one.
    """
    if "member" not in table.column_names:
        return np.arange(table.num_rows)
    group = table.column("group_id").combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    member = np.unique(table.column("member").to_numpy(), return_inverse=True)[1]
    return np.unique(group * (member.max() + 1) + member, return_inverse=True)[1]


def rewards_of_rollouts(table: pa.Table, rollouts: npt.NDArray[np.int64]) -> Array:
    """(n,) the effective reward of each row's rollout, which its last row (by `turn`) carries; NaN: none."""
    rewards: Array = effective_rewards(table).to_numpy(zero_copy_only=False)
    if "turn" not in table.column_names or len(rewards) == 0:
        return rewards
    order = np.lexsort((table.column("turn").to_numpy(), rollouts))
    ends = np.flatnonzero(np.diff(rollouts[order], append=-1))
    of_rollouts = rewards[order[ends]]
    return of_rollouts[rollouts]


def shares_of_rollouts(rollouts: Array, trained: Array) -> dict[str, Array]:
    """The weight of each row in losses that average over rollouts.

    Args:
        rollouts: (n,) as `rollout_numbers` returns them.
        trained: (R,) trained tokens of each row, R >= n; those beyond the table's rows are padding.
    Returns: `rollout_share` (R,) float32: trained tokens of the row over those of its rollout, or one over
        the rollout's rows where it has none; exactly 1 for a rollout of one row, 0 for padding.
        `num_rollouts_in_batch`, 0-dim.
    """
    n = len(rollouts)
    shares = np.zeros(len(trained), np.float32)
    rows = np.bincount(rollouts)
    tokens = np.bincount(rollouts, trained[:n])
    none = (tokens == 0)[rollouts]
    shares[:n] = np.where(none, 1 / rows[rollouts], trained[:n] / np.where(none, 1, tokens[rollouts]))
    return {"rollout_share": shares, "num_rollouts_in_batch": np.array(len(rows))}
