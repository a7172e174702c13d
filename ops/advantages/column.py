"""Shared by the advantage mappers: writing the column, and centring and scaling the values of a group.

They compare rollouts: of several rows of one (turns, or branches) the reward of the last counts, once, and
every row gets the same advantage.

Each operator's formula is in its own file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.base import append_or_replace
from ops.grouping import Groups
from ops.rollouts import ROLLOUT_COLUMNS

Array = npt.NDArray[np.float64]

ADVANTAGE_COLUMNS = ("shaped_reward", "advantage", *ROLLOUT_COLUMNS)
"""Optional input columns: the reward that counts before `reward`, the column that is replaced, and those that
tell which rows are one rollout."""


def with_advantage(table: pa.Table, advantage: Array) -> pa.Table:
    """`table` with `advantage`, a list of one float32 for each row, null where `advantage` is NaN."""
    offsets = np.arange(len(advantage) + 1, dtype=np.int32)
    missing = pa.array(np.isnan(advantage))
    lists = pa.ListArray.from_arrays(offsets, pa.array(advantage.astype(np.float32)), mask=missing)
    return append_or_replace(table, "advantage", lists)


def standardised(values: Array, groups: Groups, *, scaled: bool, eps: float) -> Array:
    """(x - mean) / (std + eps) of each group, std with ddof=1; only x - mean if not `scaled`.

    A group of one, or of equal values, gets exactly 0.0; NaN is left out of mean and std and stays NaN.
    """
    moments = groups.moments(values)
    centred: Array = values - moments.mean[groups.codes]  # exactly 0.0 where all are equal
    if not scaled:
        return centred
    std = moments.std(ddof=1)
    return centred / np.where(std > 0, std + eps, 1.0)[groups.codes]


def batch_std(values: Array) -> float:
    """Standard deviation (ddof=1) of the known values; 0.0 of fewer than two."""
    known = values[~np.isnan(values)]
    return float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
