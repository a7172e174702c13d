"""pass_rate_mapper against the statistics module, on shuffled ragged groups."""

import json
import statistics
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline

rows = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.sampled_from([0.0, 0.1, 1.0]) | st.floats(-2, 2, width=32)),
    min_size=1,
    max_size=40,
)


@pytest.mark.slow
@given(rows=rows)
def test_columns_equal_the_statistics(operator, rows):
    table = pa.table(
        {"group_id": [f"g{g}" for g, _ in rows], "reward": pa.array([r for _, r in rows], pa.float32())}
    )
    members = defaultdict(list)
    for (group, _), reward in zip(rows, table["reward"].to_pylist(), strict=True):
        if reward is not None:
            members[group].append(reward)
    out = operator("pass_rate_mapper", correct=0.1).process_table(table)
    threshold = pa.scalar(0.1, pa.float32()).as_py()
    for row, (group, _) in zip(out.to_pylist(), rows, strict=True):
        known = members[group]
        assert row["group_size"] == len(known)
        if not known:
            assert row["pass_rate"] is row["group_reward_mean"] is row["group_reward_std"] is None
            continue
        assert row["pass_rate"] == sum(reward >= threshold for reward in known) / len(known)
        assert row["group_reward_mean"] == pytest.approx(statistics.fmean(known), abs=1e-12)
        assert row["group_reward_std"] == pytest.approx(statistics.pstdev(known), abs=1e-12)


def test_the_columns_reach_the_annotation_once(experiences):
    ops = [{"pass_rate_mapper": {}}, {"pass_rate_mapper": {}}]
    out = OperatorPipeline(ops, name="experience_ops").run(experiences(["g", "g"], [0.0, 1.0]))
    assert json.loads(out["stats"][0].as_py()) == {
        "pass_rate": 0.5, "group_reward_mean": 0.5, "group_reward_std": 0.5, "group_size": 2,
    }  # fmt: skip
