"""gigpo_advantage_mapper against GiGPO's equations, written as loops over trajectories and anchor states."""

import statistics
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("member", pa.int64()),
        ("turn", pa.int64()),
        ("environment", pa.string()),
        ("reward", pa.float32()),
    ]
)
step = st.tuples(st.sampled_from(["kitchen", "hall", None]), st.none() | st.sampled_from([0.0, 0.5, 1.0]))
rollouts = st.lists(
    st.tuples(st.integers(0, 2), st.lists(step, min_size=1, max_size=5)), min_size=1, max_size=8
)


def normalised(value, values, scale):
    if len(values) < 2 or len(set(values)) == 1:
        return 0.0
    spread = statistics.stdev(values)
    if spread < 1e-12:
        return 0.0
    return (value - statistics.fmean(values)) / (spread + 1e-4 if scale == "group" else 1.0)


def reference(rollouts, omega, gamma, scale):
    """(member, turn) to advantage; None for a rollout whose last turn has no reward."""
    returns, to_go, anchors = defaultdict(list), {}, defaultdict(list)
    scored = [steps[-1][1] is not None for _, steps in rollouts]
    for member, (group, steps) in enumerate(rollouts):
        if not scored[member]:
            continue
        returns[group].append(sum(reward or 0.0 for _, reward in steps))
        for turn, (state, _) in enumerate(steps):
            later = [reward or 0.0 for _, reward in steps[turn:]]
            to_go[member, turn] = sum(gamma**k * reward for k, reward in enumerate(later))
            if state is not None:
                anchors[group, state].append(to_go[member, turn])
    out = {}
    for member, (group, steps) in enumerate(rollouts):
        for turn, (state, _) in enumerate(steps):
            if not scored[member]:
                out[member, turn] = None
                continue
            episode = normalised(sum(reward or 0.0 for _, reward in steps), returns[group], scale)
            local = normalised(to_go[member, turn], anchors[group, state], scale) if state else 0.0
            out[member, turn] = episode + omega * local
    return out


@pytest.mark.slow
@given(
    rollouts=rollouts,
    omega=st.sampled_from([0.0, 0.5, 1.0]),
    gamma=st.sampled_from([0.5, 1.0]),
    scale=st.sampled_from(["group", "none"]),
    seed=st.randoms(use_true_random=False),
)
def test_advantage_equals_the_equations(operator, rollouts, omega, gamma, scale, seed):
    rows = [
        {"group_id": f"g{group}", "member": member, "turn": turn, "environment": state, "reward": reward}
        for member, (group, steps) in enumerate(rollouts)
        for turn, (state, reward) in enumerate(steps)
    ]
    seed.shuffle(rows)
    op = operator("gigpo_advantage_mapper", omega=omega, gamma=gamma, scale=scale)
    out = op.process_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    want = reference(rollouts, omega, gamma, scale)
    for row in out.to_pylist():
        expected = want[row["member"], row["turn"]]
        if expected is None:
            assert row["advantage"] is None
        else:
            assert row["advantage"] == pytest.approx([expected], rel=1e-4, abs=1e-5)


def test_the_same_state_in_another_group_is_another_anchor(operator):
    rows = [
        {"group_id": group, "member": member, "turn": 0, "environment": "hall", "reward": reward}
        for group, member, reward in [("g", 0, 0.0), ("g", 1, 1.0), ("h", 0, 5.0), ("h", 1, 5.0)]
    ]
    op = operator("gigpo_advantage_mapper", scale="none")
    out = op.process_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    assert out["advantage"].to_pylist() == [[-1.0], [1.0], [0.0], [0.0]]


def test_no_rows(operator):
    assert (
        operator("gigpo_advantage_mapper").process_table(SCHEMA.empty_table())["advantage"].to_pylist() == []
    )


@pytest.mark.parametrize("args", [{"omega": -1}, {"gamma": 0}, {"scale": "batch"}, {"eps": -1}])
def test_bad_arguments_are_refused(operator, args):
    with pytest.raises(ValueError, match="wanted omega >= 0"):
        operator("gigpo_advantage_mapper", **args)
