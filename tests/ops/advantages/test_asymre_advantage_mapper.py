"""asymre_advantage_mapper against r - (mean + delta V)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.advantages.advantage_reference import ROWS, check


@pytest.mark.slow
@given(rows=ROWS, shift=st.sampled_from([0.0, -0.1, -1.5]))
def test_advantage_equals_the_shifted_baseline(operator, rows, shift):
    check(
        operator("asymre_advantage_mapper", baseline_shift=shift),
        rows,
        lambda reward, known: reward - (sum(known) / len(known) + shift),
    )


def test_a_positive_shift_is_refused(operator):
    with pytest.raises(ValueError, match=r"baseline_shift is 0.1"):
        operator("asymre_advantage_mapper", baseline_shift=0.1)
