"""Which reward of a row counts, what counts as correct, and how a shaped reward is written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.base import append_or_replace, floats

Array = npt.NDArray[np.float64]


def effective_rewards(table: pa.Table) -> Array:
    """`shaped_reward` where that is set, else `reward`: N values in fp64, NaN where there is neither.

    Raises: ValueError for a value that is not finite.
    """
    rewards = floats(table, "reward")
    if "shaped_reward" not in table.column_names:
        return rewards
    shaped = floats(table, "shaped_reward")
    return np.where(np.isnan(shaped), rewards, shaped)


def in_stored_precision(table: pa.Table, bound: float) -> float:
    """A least value as the columns of `effective_rewards` hold it: a reward equal to it is not below it."""
    columns = [name for name in ("reward", "shaped_reward") if name in table.column_names]
    return min(_stored(table[name].type, bound) for name in columns)


def correct_rows(table: pa.Table, threshold: float) -> npt.NDArray[np.bool_]:
    """Whether `reward` is at least `threshold`; False without one.

    Raises: ValueError for a reward that is not finite.
    """
    least = _stored(table["reward"].type, threshold)
    correct: npt.NDArray[np.bool_] = floats(table, "reward") >= least
    return correct


def with_shaped_reward(table: pa.Table, rewards: Array) -> pa.Table:
    """`table` with `shaped_reward` (float32), null where `rewards` is NaN."""
    column = pa.array(rewards, pa.float32(), mask=np.isnan(rewards))
    return append_or_replace(table, "shaped_reward", column)


def _stored(kind: pa.DataType, bound: float) -> float:
    """`bound`, or the float32 beside it where the column is float32 and that is less."""
    return min(bound, float(np.float32(bound))) if kind == pa.float32() else bound
