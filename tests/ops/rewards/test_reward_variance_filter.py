"""reward_variance_filter against an independent computation, on shuffled ragged groups."""

import statistics
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

reward = st.none() | st.sampled_from([0.0, 0.1, 0.3, 1.0]) | st.floats(-5, 5, width=32)
rows = st.lists(st.tuples(st.integers(0, 6), reward), min_size=1, max_size=40)


@pytest.mark.slow
@given(rows=rows, min_std=st.sampled_from([0.0, 1e-6, 0.25]))
@settings(deadline=None, max_examples=150)
def test_keep_equals_population_std_of_each_group(operator, rows, min_std):
    table = pa.table(
        {
            "group_id": pa.array([f"g{g}" for g, _ in rows]),
            "reward": pa.array([r for _, r in rows], pa.float32()),
        }
    )
    members = defaultdict(list)
    for (group, _), value in zip(rows, table["reward"].to_pylist(), strict=True):
        if value is not None:
            members[group].append(value)
    std = {g: statistics.pstdev(values) if len(set(values)) > 1 else 0.0 for g, values in members.items()}
    judgement = operator("reward_variance_filter", min_std=min_std).judge(table)
    near = [abs(std.get(g, 0.0) - min_std) < 1e-9 and std.get(g, 0.0) > 0 for g, _ in rows]
    expected = [std.get(g, 0.0) > min_std for g, _ in rows]
    assert [k for k, n in zip(judgement.keep, near, strict=True) if not n] == [
        k for k, n in zip(expected, near, strict=True) if not n
    ]
    assert len(judgement.reasons) == int((~judgement.keep).sum())


def test_std_is_the_populations_not_the_samples(experiences, operator):
    table = experiences(["g", "g"], [0.0, 1.0])  # 0.5, against 0.707 with ddof=1
    assert not operator("reward_variance_filter", min_std=0.6).judge(table).keep.any()
    assert operator("reward_variance_filter", min_std=0.49).judge(table).keep.all()


def test_equal_rewards_that_do_not_sum_exactly_have_std_zero(operator):
    assert sum([0.1] * 3) / 3 != 0.1
    table = pa.table({"group_id": ["g"] * 3 + ["h"] * 3, "reward": [0.1] * 3 + [0.1, 0.1, 0.2]})
    judgement = operator("reward_variance_filter", min_std=0.0).judge(table)
    assert judgement.keep.tolist() == [False] * 3 + [True] * 3
    assert judgement.reasons[0] == "group reward std 0 is not above 0"


def test_group_of_one_and_group_without_reward_are_dropped(experiences, operator):
    judgement = operator("reward_variance_filter").judge(experiences(["g", "h", "h"], [1.0, None, None]))
    assert judgement.keep.tolist() == [False] * 3
    assert judgement.reasons[1] == "no rollout of the group has a reward"


def test_row_without_reward_stays_with_its_group(experiences, operator):
    assert operator("reward_variance_filter").judge(experiences(["g"] * 3, [1.0, None, 0.0])).keep.all()


def test_reward_that_is_not_finite_is_refused(experiences, operator):
    with pytest.raises(ValueError, match="'reward' holds a value that is not finite"):
        operator("reward_variance_filter").judge(experiences(["g"] * 2, [1.0, float("nan")]))


def test_negative_min_std_is_refused(operator):
    with pytest.raises(ValueError, match="min_std is -1"):
        operator("reward_variance_filter", min_std=-1)
