"""maxrl_advantage_mapper against the mean over successes less the mean over all."""

import pytest
from hypothesis import given

from tests.ops.advantages.advantage_reference import BINARY_ROWS, check, table_of


def formula(reward, known):
    """The weight of a row in (1/K) sum over successes - (1/N) sum over all, times N."""
    successes = sum(value >= 1 for value in known)
    return (reward >= 1) * len(known) / successes - 1 if successes else 0.0


@pytest.mark.slow
@given(rows=BINARY_ROWS)
def test_advantage_equals_the_estimator(operator, rows):
    check(operator("maxrl_advantage_mapper"), rows, formula)


def test_hard_tasks_weigh_more(operator):
    rows = [(0, 1.0)] + [(0, 0.0)] * 7 + [(1, 1.0)] * 4 + [(1, 0.0)] * 4
    out = operator("maxrl_advantage_mapper").process_table(table_of(rows))["advantage"].to_pylist()
    assert out[0] == pytest.approx([7.0])
    assert out[8] == pytest.approx([1.0])
