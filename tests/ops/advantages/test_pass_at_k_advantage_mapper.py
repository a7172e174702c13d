"""pass_at_k_advantage_mapper against its definition: every choice of k rows is one trial."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.advantages.advantage_reference import BINARY_ROWS, check, table_of


@pytest.mark.slow
@given(rows=BINARY_ROWS.filter(lambda rows: max(sum(g == i for g, _ in rows) for i in range(6)) <= 11),
       k=st.integers(1, 5))  # fmt: skip
def test_advantage_equals_the_mean_over_all_trials_of_a_row(operator, rows, k):
    def formula(reward, known):
        trials = list(combinations(range(len(known)), k))
        passed = [max(known[i] for i in trial) for trial in trials]
        rate = sum(passed) / len(passed) if trials else 0.0
        spread = math.sqrt(rate * (1 - rate))
        if spread == 0:
            return 0.0
        me = known.index(reward)
        mine = [(p - rate) / spread for p, trial in zip(passed, trials, strict=True) if me in trial]
        return sum(mine) / len(mine)

    check(operator("pass_at_k_advantage_mapper", k=k), rows, formula)


def test_pass_at_1_is_grpo_with_the_population_std(operator):
    rows = [(0, 1.0)] * 2 + [(0, 0.0)] * 6
    out = operator("pass_at_k_advantage_mapper", k=1).process_table(table_of(rows))["advantage"].to_pylist()
    assert out[0] == pytest.approx([0.75 / math.sqrt(0.1875)])
    assert out[7] == pytest.approx([-0.25 / math.sqrt(0.1875)])


def test_a_group_where_no_trial_can_fail_has_nothing_to_learn(operator):
    rows = [(0, 1.0)] * 5 + [(0, 0.0)] * 3 + [(1, 1.0), (1, 0.0)]
    out = operator("pass_at_k_advantage_mapper", k=4).process_table(table_of(rows))
    assert out["advantage"].to_pylist() == [[0.0]] * 10


def test_k_must_be_positive(operator):
    with pytest.raises(ValueError, match="k is 0"):
        operator("pass_at_k_advantage_mapper", k=0)
