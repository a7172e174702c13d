"""What the components of a reward make together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.rules import AnswerFormat
from explorers.rewards.scoring import Rewards, make_rewards
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from tests.waiting import LIMIT_S, came, turns

TASK = Task("sums", ({"role": "user", "content": "9 + 9 ="},), answer="18")
ACT = "tests.explorers.toys:Act"
ONE_CHILD = Limits(reward_processes=1, reward_deadline_s=60.0)


@pytest.fixture(scope="module")
def mixed() -> Iterator[tuple[Rewards, Meter]]:
    """A component from a child between two trusted ones."""
    components = [
        {"use": "answer_format", "weight": 0.25},
        {"use": ACT, "weight": 2.0, "args": {"value": 0.5}},
        {"use": "exact_answer"},
    ]
    meter = Meter()
    rewards = make_rewards(components, ONE_CHILD, meter)
    yield rewards, meter
    rewards.close()


@pytest.mark.slow
def test_the_reward_is_the_weighted_sum_in_the_recipes_order(mixed: tuple[Rewards, Meter]) -> None:
    rewards, meter = mixed
    meter.take()
    scored = asyncio.run(rewards.score(TASK, "good so\n#### 18"))
    assert list(scored["reward_parts"].items()) == [
        ("answer_format", 1.0),
        (ACT, 0.5),
        ("exact_answer", 1.0),
    ]
    assert scored["reward"] == 0.25 * 1.0 + 2.0 * 0.5 + 1.0 * 1.0
    numbers = meter.take()
    assert 0 < numbers["reward_p50_s"] <= numbers["reward_p95_s"] <= numbers["rewarding_s"]


def test_one_unscored_part_leaves_the_reward_open_and_keeps_the_others(mixed: tuple[Rewards, Meter]) -> None:
    rewards, _ = mixed
    columns = {
        "reward": None,
        "reward_parts": {"answer_format": 0.0, "exact_answer": 0.0},
        "unscored_reason": f"reward '{ACT}': the judge is away",
    }
    assert asyncio.run(rewards.score(TASK, "away 18")) == columns
    assert rewards.score_all([(TASK, "away 18")]) == [columns]


def test_a_task_with_a_reward_of_its_own_is_scored_by_that_component_alone(
    mixed: tuple[Rewards, Meter],
) -> None:
    rewards, _ = mixed
    own = replace(TASK, reward=ACT)
    [scored] = rewards.score_all([(own, "good so\n#### 18")])
    assert scored == {"reward": 2.0 * 0.5, "reward_parts": {ACT: 0.5}, "unscored_reason": None}
    assert asyncio.run(rewards.score(own, "good so\n#### 18")) == scored
    [foreign] = rewards.score_all([(replace(TASK, reward="f1"), "good")])
    assert foreign["reward"] is None
    assert foreign["unscored_reason"].startswith("reward 'f1': the task asks for it, and the recipe has only")


def test_score_all_says_of_each_completion_what_score_does(mixed: tuple[Rewards, Meter]) -> None:
    rewards, _ = mixed
    texts = ["good \n#### 18", "away", "length four", "raises", "good"]

    async def all_at_once() -> list[dict]:
        return await asyncio.gather(*(rewards.score(TASK, text) for text in texts))

    assert rewards.score_all([(TASK, text) for text in texts]) == asyncio.run(all_at_once())


def test_a_part_computed_here_that_raises_or_is_not_finite_is_unscored_too() -> None:
    def fragile(task: Task, completion: str) -> float:
        return {"nan": float("nan")}[completion]

    rewards = Rewards({"fragile": 1.0, "format": 1.0}, {"fragile": fragile, "format": AnswerFormat()})
    assert [one["unscored_reason"] for one in rewards.score_all([(TASK, "nan"), (TASK, "other")])] == [
        "reward 'fragile': returned nan; wanted a finite number or Unscored(reason)",
        "reward 'fragile': raised KeyError: 'other'",
    ]


def test_trusted_rewards_start_no_process() -> None:
    rewards = make_rewards([{"use": "exact_answer"}, {"use": "answer_format"}], Limits())
    assert rewards._pool is None
    assert rewards.score_all([(TASK, "#### 18")])[0]["reward"] == 2.0


@pytest.mark.slow
def test_math_verify_scores_in_a_child_and_says_what_it_cannot_judge() -> None:
    rewards = make_rewards([{"use": "math_verify"}], ONE_CHILD)
    texts = ["#### 18", r"\boxed{\frac{36}{2}}", "17", "#### 9^9^9^9^9"]
    found = rewards.score_all([*((TASK, text) for text in texts), (Task("t", ()), "#### 1")])
    rewards.close()
    assert [one["reward"] for one in found] == [1.0, 1.0, 0.0, 0.0, None]
    assert found[-1]["unscored_reason"] == "reward 'math_verify': the task has no answer"


@pytest.mark.parametrize("names", [["exact_answer", "exact_answer"]])
def test_a_reward_needs_each_component_once(names: list[str]) -> None:
    with pytest.raises(RecipeError, match="wanted each reward once"):
        make_rewards([{"use": name} for name in names], Limits())


@pytest.mark.slow
def test_a_score_that_is_cancelled_gives_up_what_was_not_begun(tmp_path: Path) -> None:
    rewards = make_rewards([{"use": ACT}, {"use": "tests.explorers.toys:Second"}], ONE_CHILD)

    async def give_up() -> float:
        gate = tmp_path / "gate"
        slow = asyncio.create_task(rewards.score(TASK, f"waits {gate}"))
        await came((tmp_path / "gate.begun").exists)
        waiting = asyncio.create_task(rewards.score(TASK, "naps 600"))
        await turns()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.touch()
        await slow
        return (await rewards.score(TASK, "good"))["reward"]

    try:
        assert asyncio.run(asyncio.wait_for(give_up(), LIMIT_S)) == 2.0
    finally:
        rewards.close()
