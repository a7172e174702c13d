"""A rollout has the weight of one rollout in every advantage, however many rows it made."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

MAPPERS = {
    "asymre_advantage_mapper": {},
    "grpo_advantage_mapper": {},
    "maxrl_advantage_mapper": {},
    "opmd_advantage_mapper": {},
    "pass_at_k_advantage_mapper": {"k": 2},
    "reinforce_baseline_advantage_mapper": {},
    "remax_advantage_mapper": {},
    "reward_advantage_mapper": {},
    "rloo_advantage_mapper": {},
    "step_wise_advantage_mapper": {},
}
ROLLOUTS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([0.0, 0.25, 1.0])), min_size=2, max_size=6
)  # rows, reward


def table(rollouts: list[tuple[int, float]], *, split: bool) -> pa.Table:
    """One group; the last row of a rollout carries its reward, those before have none."""
    rows = [
        {"group_id": "g", "member": member, "turn": turn, "reward": reward if turn == last else None}
        for member, (count, reward) in enumerate(rollouts)
        for last in [count - 1 if split else 0]
        for turn in range(last + 1)
    ]
    schema = pa.schema(
        [("group_id", pa.string()), ("member", pa.int64()), ("turn", pa.int64()), ("reward", pa.float32())]
    )
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPPERS)
@given(rollouts=ROLLOUTS)
def test_every_row_gets_what_its_rollout_would_get_as_one_row(operator, name, rollouts):
    op = operator(name, **MAPPERS[name])
    whole = op.process_table(table(rollouts, split=False))["advantage"].to_pylist()
    rows = table(rollouts, split=True)
    assert op.process_table(rows)["advantage"].to_pylist() == [whole[m] for m in rows["member"].to_pylist()]


def test_rows_without_turns_are_rollouts_of_their_own(operator):
    rows = pa.table({"group_id": ["g", "g"], "reward": pa.array([0.0, 1.0], pa.float32())})
    [low], [high] = operator("grpo_advantage_mapper", eps=0.0).process_table(rows)["advantage"].to_pylist()
    assert (low, high) == pytest.approx((-math.sqrt(0.5), math.sqrt(0.5)))


def test_rewards_that_differ_only_between_rows_of_a_rollout_are_no_variance(operator):
    rows = pa.table(
        {
            "group_id": ["g"] * 4,
            "member": [0, 0, 1, 1],
            "turn": [0, 1, 0, 1],
            "reward": pa.array([0.0, 1.0, 0.5, 1.0], pa.float32()),
        }
    )
    kept = operator("reward_variance_filter").judge(rows)
    assert not kept.keep.any()
    assert kept.reasons[0] == "group reward std 0 is not above 1e-06"
