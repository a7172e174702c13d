"""reward_advantage_mapper: the reward that counts, row by row."""

import pytest
from hypothesis import given

from tests.ops.advantages.advantage_reference import ROWS, check, table_of


@pytest.mark.slow
@given(rows=ROWS)
def test_advantage_is_the_reward(operator, rows):
    check(operator("reward_advantage_mapper"), rows, lambda reward, known: reward)


def test_advantage_of_a_missing_reward_is_null(operator):
    out = operator("reward_advantage_mapper").process_table(table_of([(0, 0.25), (0, None)]))
    assert out["advantage"].to_pylist() == [[0.25], None]


def test_reward_that_is_not_finite_is_refused(operator):
    with pytest.raises(ValueError, match="not finite"):
        operator("reward_advantage_mapper").process_table(table_of([(0, float("inf"))]))
