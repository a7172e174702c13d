"""The rewards of an environment's steps: a row each, or their sum; none of them where one is no number."""

from __future__ import annotations

from typing import Any

import pytest

from explorers.rewards.scoring import Rewards
from rft_data.core.workflow import Unscored
from tests.explorers.workflows.test_worlds import PLACE, play, rows_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "rewards"),
    [("conversation", [-0.5]), ("step_wise", [-0.5, -0.5, 0.5]), ("step_wise_fresh", [-0.5, -0.5, 0.5])],
)
def test_each_step_has_its_own_reward_and_a_conversation_their_sum(
    tokenizer: Any, shape: str, rewards: list[float]
) -> None:
    settings = {"use": f"{PLACE}:Toll", "args": {"shape": shape}}
    rows = rows_of(play(tokenizer, settings, "0", "1", "1"))
    assert [row.reward for row in rows] == rewards
    assert [row.reward_parts for row in rows] == [{"world": reward} for reward in rewards]


def test_steps_without_a_number_leave_the_whole_rollout_unscored(tokenizer: Any) -> None:
    settings = {"use": f"{PLACE}:Pit", "args": {"shape": "step_wise"}}
    one, two = rows_of(play(tokenizer, settings, "1", "1"))
    assert (one.reward, one.reward_parts) == (None, {})
    assert (two.reward, two.reward_parts) == (None, {})
    assert two.unscored_reason == "reward 'world': step 1 gave nan; wanted a finite number"


def test_steps_of_a_rollout_that_a_reward_could_not_score_have_none(tokenizer: Any) -> None:
    def broken(task: Any, completion: str) -> Unscored:
        return Unscored("the judge is away")

    settings = {"use": f"{PLACE}:Toll", "args": {"shape": "step_wise"}}
    rewards = Rewards({"broken": 1.0}, {"broken": broken})
    rows = rows_of(play(tokenizer, settings, "0", "1", "1", rewards=rewards))
    assert [row.reward for row in rows] == [None] * 3
    assert rows[-1].unscored_reason == "reward 'broken': the judge is away"
