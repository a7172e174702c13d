"""Tables of groups with rewards and lengths, for operators that choose among rollouts."""

from __future__ import annotations

import pyarrow as pa


def table_of(rows: list[tuple[int, float | None, int]]) -> pa.Table:
    """Rows of (group, reward, length of the completion)."""
    return pa.table(
        {
            "group_id": [f"g{g}" for g, *_ in rows],
            "experience_id": [f"e{i:02d}" for i in range(len(rows))],
            "reward": pa.array([reward for _, reward, _ in rows], pa.float32()),
            "action_mask": pa.array([[1] * length for *_, length in rows], pa.list_(pa.int8())),
        }
    )
