"""reinforce_baseline_advantage_mapper against group centring and batch scaling by the statistics module."""

import statistics
from collections import defaultdict

import pytest
from hypothesis import given

from tests.ops.advantages.advantage_reference import ROWS, table_of


@pytest.mark.slow
@given(rows=ROWS)
def test_advantage_equals_centring_by_group_and_scaling_by_batch(operator, rows):
    table = table_of(rows)
    stored = table["reward"].to_pylist()
    known = defaultdict(list)
    for (group, _), reward in zip(rows, stored, strict=True):
        if reward is not None:
            known[group].append(reward)
    centred = [
        None if reward is None else reward - statistics.fmean(known[group])
        for (group, _), reward in zip(rows, stored, strict=True)
    ]
    values = [value for value in centred if value is not None]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    out = operator("reinforce_baseline_advantage_mapper").process_table(table)["advantage"].to_pylist()
    for got, value in zip(out, centred, strict=True):
        if value is None:
            assert got is None
        else:
            assert got == pytest.approx([value / (spread + 1e-8)], rel=1e-5, abs=1e-5)


def test_easy_groups_weigh_less_than_under_grpo(operator):
    """The point of batch scaling: a nearly solved group does not get the std of its own blown up."""
    rows = [(0, 1.0)] * 7 + [(0, 0.9)] + [(1, float(i % 2)) for i in range(8)]
    table = table_of(rows)
    batch = operator("reinforce_baseline_advantage_mapper").process_table(table)["advantage"].to_pylist()
    group = operator("grpo_advantage_mapper").process_table(table)["advantage"].to_pylist()
    assert abs(batch[7][0]) < 0.3 < 2 < abs(group[7][0])


def test_equal_rewards_get_exactly_zero_whatever_eps(operator):
    for eps in (0.0, 1e-8):
        op = operator("reinforce_baseline_advantage_mapper", eps=eps)
        out = op.process_table(table_of([(0, 0.1)] * 3 + [(1, 5.0)]))
        assert out["advantage"].to_pylist() == [[0.0]] * 4


def test_it_compares_the_whole_batch(operator):
    assert operator("reinforce_baseline_advantage_mapper").whole_batch
    assert operator("grpo_advantage_mapper", scale="batch").whole_batch
    assert not operator("grpo_advantage_mapper").whole_batch
