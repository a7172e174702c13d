"""The arm of a trajectory is a function of the seed and its id, and shares come out."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.core.arms import Arm, drawn_arm, drawn_place


def test_an_arm_is_the_same_in_every_process_and_after_every_restart() -> None:
    drawn = "".join(drawn_arm(7, f"{number:016x}", 0.3)[0] for number in range(24))
    assert drawn == "nnnnnnnnonnnnnooonnnnnnn"


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.floats(0.001, 0.999), st.text(max_size=4))
def test_shares_come_out(seed: int, share: float, prefix: str) -> None:
    drawn = [drawn_arm(seed, f"{prefix}{number}", share) for number in range(2000)]
    error = math.sqrt(share * (1 - share) / len(drawn))
    assert abs(drawn.count(Arm.OLD) / len(drawn) - share) < 7 * error + 1 / len(drawn)


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(), st.text(), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_a_larger_share_only_adds_to_the_old_arm(seed: int, name: str, one: float, other: float) -> None:
    small, large = sorted([one, other])
    if drawn_arm(seed, name, small) is Arm.OLD:
        assert drawn_arm(seed, name, large) is Arm.OLD


@pytest.mark.parametrize("places", [1, 3])
def test_the_trajectories_of_an_arm_are_spread_over_all_its_places(places: int) -> None:
    names = [str(n) for n in range(3000) if drawn_arm(0, str(n), 0.5) is Arm.NEW]
    counts = [sum(drawn_place(0, name, places) == place for name in names) for place in range(places)]
    assert all(abs(count / len(names) - 1 / places) < 0.06 for count in counts), counts
