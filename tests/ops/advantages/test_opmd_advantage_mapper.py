"""opmd_advantage_mapper against the log-partition, in arbitrary precision."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.advantages.advantage_reference import ROWS, check, table_of


@pytest.mark.slow
@given(rows=ROWS, tau=st.sampled_from([0.02, 0.5, 1.0, 50.0]))
def test_advantage_equals_the_log_partition(operator, rows, tau):
    def formula(reward, known):
        with localcontext(prec=60):
            exps = [(Decimal(value) / Decimal(tau)).exp() for value in known]
            return float(Decimal(reward) - Decimal(tau) * (sum(exps) / len(exps)).ln())

    check(operator("opmd_advantage_mapper", tau=tau), rows, formula)


def test_baseline_goes_from_mean_to_maximum_and_never_overflows(operator):
    rows = [(0, 0.0), (0, 0.0), (0, 1000.0), (0, 3000.0)]
    at = {
        tau: [a for [a] in operator("opmd_advantage_mapper", tau=tau).process_table(table_of(rows))[
            "advantage"
        ].to_pylist()]
        for tau in (1e-3, 1e9)
    }  # fmt: skip
    assert at[1e-3] == pytest.approx([-3000, -3000, -2000, 0], abs=0.01)
    assert at[1e9] == pytest.approx([-1000, -1000, 0, 2000], abs=0.01)


def test_group_of_one_and_equal_rewards_get_exactly_zero(operator):
    out = operator("opmd_advantage_mapper").process_table(table_of([(0, 0.1)] * 3 + [(1, 5.0)]))
    assert out["advantage"].to_pylist() == [[0.0]] * 4


def test_no_rows(operator):
    assert operator("opmd_advantage_mapper").process_table(table_of([]))["advantage"].to_pylist() == []


def test_tau_must_be_positive(operator):
    with pytest.raises(ValueError, match="tau is 0"):
        operator("opmd_advantage_mapper", tau=0.0)
