"""down_sampling_filter: max_variance against every subset, random against order and company."""

import statistics
from collections import defaultdict
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

reward = st.none() | st.sampled_from([0.0, 0.1, 1.0]) | st.floats(-5, 5, width=32)
rows = st.lists(st.tuples(st.integers(0, 3), reward), min_size=1, max_size=24)


def table_of(rows, ids=None):
    ids = ids or [f"e{i:02d}" for i in range(len(rows))]
    return pa.table(
        {
            "group_id": [f"g{g}" for g, _ in rows],
            "experience_id": ids,
            "reward": pa.array([r for _, r in rows], pa.float32()),
        }
    )


@pytest.mark.slow
@given(rows=rows, size=st.integers(1, 5))
@settings(max_examples=60)
def test_variance_is_that_of_the_best_subset(operator, rows, size):
    table = table_of(rows)
    keep = operator("down_sampling_filter", size=size).judge(table).keep
    groups = defaultdict(list)
    for place, (group, _) in enumerate(rows):
        groups[group].append(place)
    rewards = table["reward"].to_pylist()
    for places in groups.values():
        kept = [place for place in places if keep[place]]
        if len(places) <= size:
            assert kept == places
            continue
        known = [rewards[place] for place in places if rewards[place] is not None]
        assert all(rewards[place] is not None for place in kept)
        assert len(kept) == min(size, len(known))
        if len(known) > size:
            best = max(statistics.pvariance(subset) for subset in combinations(known, size))
            got = statistics.pvariance([rewards[place] for place in kept])
            assert got == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_binary_rewards_are_halved(operator):
    table = table_of([(0, 1.0)] * 11 + [(0, 0.0)] * 5)
    keep = operator("down_sampling_filter", size=8).judge(table).keep
    assert keep.tolist() == [False] * 7 + [True] * 8 + [
        False
    ]  # of equal rewards, the first low, the last high


def test_groups_of_very_different_scale_do_not_disturb_each_other(operator):
    tiny = [1.0, 1.0 + 2e-7, 1.0, 1.0 + 4e-7, 1.0]
    rows = [(0, 1e6 * i) for i in range(9)] + [(1, value) for value in tiny]
    alone = operator("down_sampling_filter", size=2).judge(table_of([(1, value) for value in tiny]))
    together = operator("down_sampling_filter", size=2).judge(table_of(rows))
    assert together.keep[9:].tolist() == alone.keep.tolist()


@pytest.mark.slow
@given(rows=rows, order=st.randoms(use_true_random=False), seed=st.integers(-3, 3))
@settings(max_examples=40)
def test_random_draws_by_id_whatever_the_order_and_company(operator, rows, order, seed):
    op = operator("down_sampling_filter", size=2, rule="random", seed=seed)
    table = table_of(rows)
    kept = set(table.filter(pa.array(op.judge(table).keep))["experience_id"].to_pylist())
    places = list(range(len(rows)))
    order.shuffle(places)
    shuffled = table.take(places)
    assert set(shuffled.filter(pa.array(op.judge(shuffled).keep))["experience_id"].to_pylist()) == kept
    group = table.filter(pa.array([g == rows[0][0] for g, _ in rows]))
    alone = set(group.filter(pa.array(op.judge(group).keep))["experience_id"].to_pylist())
    assert alone == kept & set(group["experience_id"].to_pylist())


def test_random_is_even_over_members_and_depends_on_the_seed(operator):
    rng = np.random.default_rng(0)
    rows = [(i // 8, float(rng.random())) for i in range(8000)]
    table = table_of(rows, [f"run/{i}" for i in range(8000)])
    keeps = [
        operator("down_sampling_filter", size=4, rule="random", seed=s).judge(table).keep for s in (0, 1)
    ]
    share = keeps[0].reshape(1000, 8).mean(0)
    assert keeps[0].sum() == 4000
    assert np.all(np.abs(share - 0.5) < 0.08)
    assert not np.array_equal(*keeps)


def test_rollouts_of_several_turns_stay_whole(operator):
    table = pa.table(
        {
            "group_id": ["g"] * 6,
            "experience_id": list("abcdef"),
            "member": [0, 0, 1, 1, 2, 2],
            "turn": [0, 1, 1, 0, 0, 1],
            "reward": pa.array([9.0, 0.0, 0.5, 9.0, 0.0, 1.0], pa.float32()),
        }
    )
    judgement = operator("down_sampling_filter", size=2).judge(table)
    assert judgement.keep.tolist() == [True, True, False, False, True, True]
    assert judgement.reasons == ["not among the 2 of 3 rollouts kept (max_variance)"] * 2


def test_bad_arguments_are_refused(operator):
    with pytest.raises(ValueError, match="size is 0"):
        operator("down_sampling_filter", size=0)
    with pytest.raises(ValueError, match="rule 'best'"):
        operator("down_sampling_filter", size=2, rule="best")
