"""Held-out figures against their definitions."""

from itertools import combinations

import numpy as np
import pytest

from rft_data.evaluation import pass_at_k
from tests.rft_data.conftest import make_experience


def answers(task: int, *right: bool) -> list:
    return [
        make_experience(10 * task + n, task_id=f"t{task}", member=n, reward_parts={"exact": float(is_right)})
        for n, is_right in enumerate(right)
    ]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    rng = np.random.default_rng(3)
    outcomes = [tuple(bool(x) for x in rng.random(6) < rate) for rate in (0.0, 0.2, 0.5, 1.0)]
    found = pass_at_k([row for n, each in enumerate(outcomes) for row in answers(n, *each)], "exact")
    assert list(found) == ["1", "2", "4", "6"]
    for k, share in found.items():
        by_task = [[any(subset) for subset in combinations(each, int(k))] for each in outcomes]
        assert share == pytest.approx(np.mean([np.mean(one) for one in by_task]), abs=1e-12)


def test_pass_at_k_counts_failed_missing_and_other_turns_as_they_are() -> None:
    failed = make_experience(7, task_id="t0", member=1, reward_parts={}, source="eval")
    turns = [
        make_experience(20 + n, task_id="t2", member=0, turn=n, reward_parts={"exact": float(n == 1)})
        for n in range(2)
    ]
    rows = [*answers(0, True), failed, *answers(1, True, True), *turns]
    assert pass_at_k(rows, "exact") == {"1": pytest.approx((0.5 + 1 + 0.5) / 3), "2": 1.0}
