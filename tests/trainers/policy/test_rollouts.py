from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from rft_data.core.schema import EXPERIENCES
from trainers.policy.collate import collate
from trainers.policy.rollouts import rewards_of_rollouts, rollout_numbers, shares_of_rollouts

ROLLOUTS = pa.table({"group_id": ["a", "a", "a", "b", "b"], "member": [0, 0, 1, 0, 0]})


def test_the_rows_of_a_rollout_share_one_weight_by_their_trained_tokens() -> None:
    found = shares_of_rollouts(rollout_numbers(ROLLOUTS), np.array([3, 1, 7, 0, 0, 0]))
    np.testing.assert_allclose(found["rollout_share"], [0.75, 0.25, 1, 0.5, 0.5, 0])
    assert found["num_rollouts_in_batch"] == 3


@pytest.mark.parametrize("seed", range(5))
def test_shares_add_up_to_the_rollouts(seed: int) -> None:
    random = np.random.default_rng(seed)
    group, member = random.integers(0, 4, 40), random.integers(0, 3, 40)
    table = pa.table({"group_id": [f"g{one}" for one in group], "member": member})
    found = shares_of_rollouts(rollout_numbers(table), random.integers(0, 3, 40) * random.integers(0, 2, 40))
    rollouts = len(set(zip(group, member, strict=True)))
    assert found["num_rollouts_in_batch"] == rollouts
    assert found["rollout_share"].sum() == pytest.approx(rollouts, rel=1e-6)


def test_without_the_column_member_each_row_is_a_rollout() -> None:
    found = shares_of_rollouts(rollout_numbers(ROLLOUTS.select(["group_id"])), np.array([3, 0, 1, 2, 5]))
    assert found["rollout_share"].tolist() == [1, 1, 1, 1, 1]
    assert found["num_rollouts_in_batch"] == 5


def test_every_row_has_the_reward_of_its_rollouts_last_turn() -> None:
    rewards = pa.array([0.5, None, 1.0, 0.25, None], pa.float32())
    turns = {"turn": [1, 0, 0, 0, 1], "reward": rewards}
    table = pa.table({"group_id": ROLLOUTS["group_id"], "member": ROLLOUTS["member"], **turns})
    np.testing.assert_array_equal(
        rewards_of_rollouts(table, rollout_numbers(table)),
        np.array([0.5, 0.5, 1.0, np.nan, np.nan], np.float32),
    )


def test_a_batch_has_the_reward_of_its_rollout_on_every_row(rows_table: Callable[..., pa.Table]) -> None:
    rows = rows_table(0, 4).drop_columns("reward")
    known = {"member": [0, 0, 1, 0], "turn": [0, 1, 0, 0], "reward": [None, 1.0, 0.25, None]}
    for name, values in known.items():
        rows = rows.append_column(name, pa.array(values, EXPERIENCES.field(name).type))
    batch = collate(rows, rows=5, pad_id=0)
    assert batch["rollouts"].tolist() == [0, 0, 2, 1, -1]
    np.testing.assert_array_equal(batch["rewards"], [1.0, 1.0, 0.25, np.nan, np.nan])
