"""The weight of a row in losses that average over rollouts: its share of its rollout.

A rollout has one row, or several (one a turn, or one a branch), which together have the weight of one.
Losses that sum over trained tokens need none of this, because a token is trained on in one row only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[np.generic]


def shares_of_rollouts(table: pa.Table, trained: Array) -> dict[str, Array]:
    """Rows with one (group_id, member) are one rollout; without the column `member` each row is one.

    Args:
        table: n rows.
        trained: (R,) trained tokens of each row, R >= n; those beyond the table's rows are padding.
    Returns: `rollout_share` (R,) float32: trained tokens of the row over those of its rollout, or one over
        the rollout's rows where it has none; exactly 1 for a rollout of one row, 0 for padding.
        `num_rollouts_in_batch`, 0-dim.
    """
    n = table.num_rows
    shares = np.zeros(len(trained), np.float32)
    codes = _rollouts(table)
    rows = np.bincount(codes)
    tokens = np.bincount(codes, trained[:n])
    none = (tokens == 0)[codes]
    shares[:n] = np.where(none, 1 / rows[codes], trained[:n] / np.where(none, 1, tokens[codes]))
    return {"rollout_share": shares, "num_rollouts_in_batch": np.array(len(rows))}


def _rollouts(table: pa.Table) -> Array:
    """(n,) rollout numbers, dense and 0-based."""
    if "member" not in table.column_names:
        return np.arange(table.num_rows)
    group = table.column("group_id").combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    member = np.unique(table.column("member").to_numpy(), return_inverse=True)[1]
    return np.unique(group * (member.max() + 1) + member, return_inverse=True)[1]
