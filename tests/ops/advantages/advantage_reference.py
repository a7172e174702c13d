"""What the advantage tests share: shuffled ragged groups, and a formula applied to one group at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import strategies as st

Rows = Sequence[tuple[int, float | None]]

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.sampled_from([0.0, 0.1, 1.0]) | st.floats(-5, 5, width=32)),
    min_size=1,
    max_size=40,
)
BINARY_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.sampled_from([0.0, 1.0])), min_size=1, max_size=40
)


def table_of(rows: Rows) -> pa.Table:
    """`group_id` and `reward` as they are stored."""
    return pa.table(
        {"group_id": [f"g{g}" for g, _ in rows], "reward": pa.array([r for _, r in rows], pa.float32())}
    )


def check(op: object, rows: Rows, formula: Callable[[float, list[float]], float]) -> None:
    """The operator's advantages equal `formula(reward, the group's known rewards)`; null where unknown."""
    table = table_of(rows)
    stored = table["reward"].to_pylist()
    known = defaultdict(list)
    for (group, _), reward in zip(rows, stored, strict=True):
        if reward is not None:
            known[group].append(reward)
    out = op.process_table(table)["advantage"]
    assert out.type == pa.list_(pa.float32())
    for got, (group, _), reward in zip(out.to_pylist(), rows, stored, strict=True):
        if reward is None:
            assert got is None
        else:
            assert got == pytest.approx([formula(reward, known[group])], rel=1e-5, abs=1e-5)
