"""reward_range_filter: bounds, missing rewards, precision."""

import numpy as np
import pyarrow as pa
import pytest


def test_range_is_inclusive_and_names_what_is_outside(experiences, operator):
    table = experiences(["g"] * 4, [-1.0, 0.0, 1.0, 1.5])
    judgement = operator("reward_range_filter", min_reward=0, max_reward=1).judge(table)
    assert judgement.keep.tolist() == [False, True, True, False]
    assert judgement.reasons == ["reward -1 is not in [0, 1]", "reward 1.5 is not in [0, 1]"]


def test_missing_reward_is_dropped_with_why_it_is_missing(experiences, operator):
    table = experiences(["g"] * 2, [None, 0.0])
    judgement = operator("reward_range_filter").judge(table)
    assert judgement.keep.tolist() == [False, True]
    assert judgement.reasons == ["no reward: grader timed out"]
    bare = operator("reward_range_filter").judge(table.select(["reward"]))
    assert bare.reasons == ["no reward: not scored"]


def test_bound_is_compared_in_the_stored_precision(operator):
    stored = pa.table({"reward": pa.array([0.1, 0.7], pa.float32())})
    assert operator("reward_range_filter", min_reward=0.1, max_reward=0.7).judge(stored).keep.all()
    assert float(np.float32(0.1)) > 0.1  # why the naive comparison with max_reward=0.1 would drop


def test_nan_is_outside_every_range(operator):
    stored = pa.table({"reward": pa.array([float("nan")], pa.float32())})
    judgement = operator("reward_range_filter").judge(stored)
    assert not judgement.keep.any()
    assert judgement.reasons == ["reward nan is not in [-inf, inf]"]


def test_reversed_bounds_are_refused(operator):
    with pytest.raises(ValueError, match="min_reward 2 is above max_reward 1"):
        operator("reward_range_filter", min_reward=2, max_reward=1)
