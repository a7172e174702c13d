"""Row numbers in order: each once, and the way back to those that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_data.buffer.row_numbers import ascending


@pytest.mark.slow
@given(st.lists(st.integers(0, 9), max_size=12))
def test_numbers_grow_and_lead_back_to_those_asked(asked: list[int]) -> None:
    wanted, order = ascending(asked)
    assert wanted.tolist() == sorted(set(asked))
    assert (wanted if order is None else wanted[order]).tolist() == asked


@pytest.mark.parametrize(
    ("asked", "copies"), [([], False), ([3, 8], False), ([3, 3, 8], True), ([8, 3], True)]
)
def test_rows_that_are_in_order_are_not_put_in_order(asked: list[int], copies: bool) -> None:
    assert (ascending(np.asarray(asked, np.int64))[1] is not None) is copies
