"""Rubrics of the real package verifiers that compare the rollouts of a group: asked when all are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from explorers.limits import Limits
from explorers.meter import Meter
from explorers.plan import GroupPlan
from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.groups import GroupPlayer
from explorers.workflows.make import make_workflows
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Completion, Sampling
from rft_data.core.groups import Group, Ticket
from rft_data.core.rows import Task
from rft_data.core.trajectory import Trajectory
from rft_data.core.words import GroupOutcome
from tests.explorers.conversations.conftest import SayingEngine
from tests.explorers.workflows.test_worlds import NONE
from tests.explorers.workflows.verifiers_worlds import settings, tasks


class Failing(SayingEngine):
    """Says the texts in turn; an empty one fails."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        if not self._texts[0]:
            self._texts.pop(0)
            raise KeyError("no such thing")
        return await super().generate(prompt_ids, sampling)


class House:
    """A group player of one environment."""

    def __init__(
        self, tokenizer: Any, name: str, says: Sequence[str], rewards: Rewards = NONE, **args: Any
    ) -> None:
        self.tasks = tasks(name, **args)
        self.meter = Meter()
        self.workflow = make_workflows(
            settings(name, **args), {"other": {"use": "single_turn"}}, tokenizer, rewards
        )
        engine = Failing(tokenizer, [one and f"{one}<|im_end|>" for one in says])
        limits = Limits(retries=0, extra=0)
        plan = GroupPlan("run", 0, "e0", len(says), Sampling(64), limits)
        rollouts = Rollouts(engine, self.workflow, limits, self.meter)
        self.player = GroupPlayer(rollouts, plan, self.meter, rewards)

    def play(self, task: Task | None = None) -> Group:
        return asyncio.run(self.player.play(Ticket("g", 0, 0), task or self.tasks[0]))

    @property
    def kept(self) -> dict[str, Any]:
        return self.workflow._default._groups  # type: ignore[attr-defined,no-any-return]


@pytest.mark.slow
def test_a_groups_rollouts_are_compared_when_all_are_there(tokenizer: Any) -> None:
    house = House(tokenizer, "compared", ["5", "five", "7"])
    group = house.play()
    assert [row.completion_text for row in group.experiences] == ["5", "five", "7"]
    assert [row.reward for row in group.experiences] == [1.5, 0.0, 0.5]
    assert [row.unscored_reason for row in group.experiences] == [None] * 3
    parts = group.experiences[0].reward_parts
    assert (parts["world"], parts["world.own"], parts["world.shortest"]) == (1.5, 1.0, 1.0)
    assert house.kept == {}


@pytest.mark.slow
def test_a_rubric_that_scores_groups_its_own_way_does_so(tokenizer: Any) -> None:
    group = House(tokenizer, "ranked", ["5", "5", "7"]).play()
    assert [row.reward for row in group.experiences] == [1.0, 0.0, 0.0]


@pytest.mark.slow
def test_environments_of_a_group_are_compared_too(tokenizer: Any) -> None:
    house = House(tokenizer, "one_compares", ["5", "five"])
    [task] = [one for one in house.tasks if one.metadata["task"] == "compared" and one.answer == "5"]
    assert [row.reward for row in house.play(task).experiences] == [1.5, 0.0]


@pytest.mark.slow
def test_the_recipes_rewards_are_added_also_those_of_groups(tokenizer: Any) -> None:
    def place(group: list[Trajectory]) -> list[float]:
        return [10.0 * n for n in range(len(group))]

    local = {"exact_answer": ExactAnswer(), "place": place}
    rewards = Rewards({"exact_answer": 100.0, "place": 1.0}, local)
    group = House(tokenizer, "compared", ["#### 5", "5"], rewards).play()
    assert [row.reward for row in group.experiences] == [100.0 + 0.0 + 0.0, 0.0 + 10.0 + 1.5]
    assert group.experiences[1].reward_parts["world"] == 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "rewards", "why"),
    [
        ("one", [1.5, None], "'own' of the rubric raised ConnectionError"),
        ("group", [None, None], "'shortest' of the rubric raised ConnectionError"),
        ("too few", [None, None], "wanted one number for each of the 2 rollouts"),
    ],
)
def test_a_function_that_fails_is_no_zero_and_costs_only_whom_it_was_asked_about(
    tokenizer: Any, failure: str, rewards: list[float | None], why: str
) -> None:
    house = House(tokenizer, "compared", ["5", "five"], failure=failure)
    group = house.play()
    assert [row.reward for row in group.experiences] == rewards
    for row in group.experiences:
        assert (why in (row.unscored_reason or "")) == (row.reward is None)
    assert house.meter.take()["rollouts_unscored"] == rewards.count(None)


@pytest.mark.slow
def test_rows_of_a_group_that_failed_say_so_and_nothing_of_it_is_kept(tokenizer: Any) -> None:
    house = House(tokenizer, "compared", ["5", ""])
    group = house.play()
    assert group.outcome == GroupOutcome.FAILED
    [row] = group.experiences
    assert row.reward is None
    assert "and the group failed" in (row.unscored_reason or "")
    assert house.kept == {}


@pytest.mark.slow
def test_an_evaluation_of_one_answer_is_a_group_of_one(tokenizer: Any) -> None:
    house = House(tokenizer, "compared", ["5"])
    task = house.tasks[0]

    async def answered() -> Any:
        answer = await house.player.answer(task, "heldout", 0, Sampling(64, 0.0))
        return await house.player.scored(task, {0: answer})

    [row] = asyncio.run(answered())
    assert (row.reward, row.source) == (1.5, "eval")
    assert house.kept == {}
