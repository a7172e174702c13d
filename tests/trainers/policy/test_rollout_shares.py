from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from trainers.policy.rollout_shares import shares_of_rollouts

ROLLOUTS = pa.table({"group_id": ["a", "a", "a", "b", "b"], "member": [0, 0, 1, 0, 0]})


def test_the_rows_of_a_rollout_share_one_weight_by_their_trained_tokens() -> None:
    found = shares_of_rollouts(ROLLOUTS, np.array([3, 1, 7, 0, 0, 0]))
    np.testing.assert_allclose(found["rollout_share"], [0.75, 0.25, 1, 0.5, 0.5, 0])
    assert found["num_rollouts_in_batch"] == 3


@pytest.mark.parametrize("seed", range(5))
def test_shares_add_up_to_the_rollouts(seed: int) -> None:
    random = np.random.default_rng(seed)
    group, member = random.integers(0, 4, 40), random.integers(0, 3, 40)
    table = pa.table({"group_id": [f"g{one}" for one in group], "member": member})
    found = shares_of_rollouts(table, random.integers(0, 3, 40) * random.integers(0, 2, 40))
    rollouts = len(set(zip(group, member, strict=True)))
    assert found["num_rollouts_in_batch"] == rollouts
    assert found["rollout_share"].sum() == pytest.approx(rollouts, rel=1e-6)


def test_without_the_column_member_each_row_is_a_rollout() -> None:
    found = shares_of_rollouts(ROLLOUTS.select(["group_id"]), np.array([3, 0, 1, 2, 5]))
    assert found["rollout_share"].tolist() == [1, 1, 1, 1, 1]
    assert found["num_rollouts_in_batch"] == 5
