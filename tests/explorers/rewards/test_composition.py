"""How components make one number, against the formula written out; and rewards of whole groups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorers.limits import Limits
from explorers.rewards.composition import Composition
from explorers.rewards.contract import Score
from explorers.rewards.group_scoring import score_group, without_group
from explorers.rewards.scoring import Rewards, make_rewards
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Experience, Task
from rft_data.core.trajectory import Trajectory
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from tests.explorers.rewards.toy_rewards import by_rank, length

TASK = Task("t", ({"role": "user", "content": "?"},))
number = st.floats(-3, 3, width=32)


@pytest.mark.slow
@given(st.lists(st.tuples(number, number, st.none() | number, st.none() | number), min_size=1, max_size=5))
def test_the_total_is_the_weighted_sum_of_bounded_values(rows: list[tuple[float, float, Any, Any]]) -> None:
    components, total = [], 0.0
    for place, (_, weight, low, high) in enumerate(rows):
        low, high = (low, high) if None in (low, high) else sorted((low, high))
        components.append({"use": f"r{place}", "weight": weight, "min": low, "max": high})
    for (value, weight, _, _), one in zip(rows, components, strict=True):
        bounded = value if one["min"] is None or value >= one["min"] else one["min"]
        bounded = bounded if one["max"] is None or bounded <= one["max"] else one["max"]
        total += weight * bounded
    found = {f"r{place}": Score(row[0]) for place, row in enumerate(rows)}
    columns = Composition.from_recipe(components).columns(found)
    assert columns["reward"] == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert columns["reward_parts"] == {name: score.value for name, score in found.items()}


def test_reported_parts_are_stored_beside_the_value() -> None:
    columns = Composition.weighted({"r": 2.0}).columns({"r": Score(0.5, {"a": 0.25, "b": 0.25})})
    assert columns == {
        "reward": 1.0,
        "reward_parts": {"r": 0.5, "r.a": 0.25, "r.b": 0.25},
        "unscored_reason": None,
    }


class Counting:
    """A reward that says how often it was asked."""

    def __init__(self, value: float) -> None:
        self.value, self.asked = value, 0

    def __call__(self, task: Task, completion: str) -> float:
        self.asked += 1
        return self.value


@pytest.mark.parametrize(("first", "reward", "asked"), [(0.0, 0.0, 0), (1.0, 0.75, 1)])
def test_a_component_behind_a_shut_gate_adds_nothing_and_is_not_asked(
    first: float, reward: float, asked: int
) -> None:
    gate = {"reward": "right", "at_least": 1.0}
    composition = Composition.from_recipe(
        [
            {"use": "right", "max": 0.5},
            {"use": "style", "only_if": gate, "weight": 0.25},
            {"use": "depth", "only_if": {"reward": "style", "at_least": 2.0}},
        ]
    )
    style, depth = Counting(1.0), Counting(1.0)
    rewards = Rewards(composition, {"right": Counting(first), "style": style, "depth": depth})
    columns = asyncio.run(rewards.score(TASK, "x"))
    assert columns["reward"] == reward
    assert columns["reward_parts"] == ({"right": 1.0, "style": 1.0} if asked else {"right": 0.0})
    assert (style.asked, depth.asked) == (asked, 0)


def test_each_taskset_is_scored_by_its_own_components() -> None:
    composition = Composition.from_recipe(
        [
            {"use": "maths", "tasksets": ["t"]},
            {"use": "code", "tasksets": ["u"]},
            {"use": "style", "tasksets": ["t", "u"], "name": "brief"},
        ]
    )
    rewards = Rewards(composition, {"maths": Counting(1.0), "code": Counting(2.0), "brief": Counting(0.5)})
    first, second, third = rewards.score_all([(replace(TASK, taskset=name), "x") for name in "tuv"])
    assert first["reward_parts"] == {"maths": 1.0, "brief": 0.5}
    assert second["reward_parts"] == {"code": 2.0, "brief": 0.5}
    assert third["reward"] is None
    assert (
        third["unscored_reason"] == "reward 'explorer.reward': no component of the reward is for taskset 'v'"
    )


@pytest.mark.parametrize(
    ("components", "match"),
    [
        ([{"use": "a"}, {"use": "a"}], "wanted each reward once. Give a second one"),
        ([{"use": "a", "min": 2, "max": 1}], "min 2 above max 1"),
        ([{"use": "a", "only_if": {"reward": "b", "at_least": 1}}, {"use": "b"}], "no component before it"),
        ([{"use": "a"}, {"use": "b", "only_if": {"reward": "aa", "at_least": 1}}], "did you mean 'a'"),
        (
            [{"use": "a", "tasksets": ["t"]}, {"use": "b", "only_if": {"reward": "a", "at_least": 1}}],
            "for the tasksets .'t'. only; give both the same",
        ),
    ],
)
def test_a_composition_that_cannot_work_is_refused(components: list[dict], match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        Composition.from_recipe(components)


def test_a_gate_of_one_rollout_cannot_wait_for_its_group() -> None:
    composition = Composition.from_recipe(
        [{"use": "rank"}, {"use": "style", "only_if": {"reward": "rank", "at_least": 1}}]
    )
    with pytest.raises(RecipeError, match="known only when the whole group is"):
        Rewards(composition, {"rank": by_rank, "style": Counting(1.0)})


# --- groups ----------------------------------------------------------------------------------------


def ranked(**gate: Any) -> Rewards:
    rank = {"use": "rank", "weight": 10.0, **gate}
    composition = Composition.from_recipe([{"use": "length"}, rank])
    return Rewards(composition, {"length": length, "rank": by_rank})


def played(rewards: Rewards, *texts: str, turns: int = 1) -> dict[int, list[Experience]]:
    """Rollouts as a workflow leaves them: scored by what looks at one of them."""
    return {
        member: [
            Experience(
                f"{member}/{turn}",
                "rollout",
                "run",
                "t",
                "x",
                "g",
                member=member,
                turn=turn,
                completion_text=text,
                **asyncio.run(rewards.score(TASK, Trajectory(TASK, text))),
            )
            for turn in range(turns)
        ]
        for member, text in enumerate(texts)
    }


def test_a_reward_of_the_group_is_added_when_the_group_is_there() -> None:
    rewards = ranked()
    before = played(rewards, "abc", "a", "", turns=2)
    assert {row.reward for rows in before.values() for row in rows} == {None}
    assert before[0][0].reward_parts == {"length": 3.0}
    after = asyncio.run(score_group(rewards, TASK, before, 5.0))
    assert [row.reward for row in (*after[0], *after[1])] == [None, 23.0, None, 11.0]
    assert after[0][1].reward_parts == {"length": 3.0, "rank": 2.0}
    assert (after[2][1].reward, after[2][1].unscored_reason) == (None, "reward 'rank': empty")


def test_a_rollout_that_has_no_reward_or_a_shut_gate_is_not_shown_to_the_group() -> None:
    rewards = ranked(only_if={"reward": "length", "at_least": 2.0})
    rows = played(rewards, "abcd", "a", "abc", "abcdef")
    lost = replace(rows[3][0], reward_parts={}, unscored_reason="timeout: reward 'length': too late")
    after = asyncio.run(score_group(rewards, TASK, {**rows, 3: [lost]}, 5.0))
    assert [rows[0].reward for rows in after.values()] == [14.0, 1.0, 3.0, None]
    assert after[1][0].reward_parts == {"length": 1.0}
    assert after[3][0].unscored_reason == "timeout: reward 'length': too late"
    rewards = ranked()  # no gate that would be shut for it
    shown = {member: played(rewards, "abcd", "a", "abc")[member] for member in range(3)}
    alone = asyncio.run(score_group(rewards, TASK, shown, 5.0))
    beside = asyncio.run(score_group(rewards, TASK, {**shown, 3: [lost]}, 5.0))
    assert {member: beside[member] for member in shown} == alone
    assert (beside[3][0].reward, beside[3][0].reward_parts) == (None, {})


def test_a_group_that_takes_too_long_is_a_time_out_and_one_that_failed_says_so() -> None:
    async def slow(group: list[Trajectory]) -> list[float]:
        raise AssertionError

    rewards = ranked()

    async def ask(name: str, task: Task, judged: Any) -> Any:
        await asyncio.sleep(60)

    rows = played(rewards, "abc", "a")
    rewards.ask = ask  # type: ignore[method-assign]
    after = asyncio.run(score_group(rewards, TASK, rows, 0.05))
    assert [rows[0].reward for rows in after.values()] == [None, None]
    assert after[0][0].unscored_reason == "timeout: reward 'rank': the group was not scored within 0.05 s"
    (failed,) = without_group(rows[0])
    assert "and the group failed" in (failed.unscored_reason or "")


def test_feedback_that_comes_later_still_leaves_the_reward_open() -> None:
    def later(task: Task, completion: str) -> Unscored:
        return Unscored("", UnscoredCause.LATER)

    rewards = Rewards(Composition.weighted({"later": 1.0, "rank": 1.0}), {"later": later, "rank": by_rank})
    after = asyncio.run(score_group(rewards, TASK, played(rewards, "abc", "a"), 5.0))
    assert [(row.reward, row.unscored_reason, row.reward_parts) for (row,) in after.values()] == [
        (None, None, {"rank": 1.0}),
        (None, None, {"rank": 0.0}),
    ]


@pytest.mark.slow
def test_rewards_of_trajectories_and_groups_run_in_children() -> None:
    toys = "tests.explorers.rewards.toy_rewards"
    rewards = make_rewards(
        [
            {"use": f"{toys}:tools_used", "name": "tools"},
            {"use": f"{toys}:by_rank", "name": "rank"},
            {"use": f"{toys}:above_mean", "name": "mean"},
            {"use": f"{toys}:quick", "name": "quick"},
        ],
        Limits(reward_processes=1, reward_deadline_s=60.0),
    )
    try:
        after = asyncio.run(score_group(rewards, TASK, played(rewards, "abc", "a"), 60.0))
    finally:
        rewards.close()
    assert after[0][0].reward_parts == {
        "tools": 0.0,
        "tools.calls": 0.0,
        "tools.tokens": 0.0,
        "quick": 3.0,
        "rank": 1.0,
        "mean": 1.0,
    }
    assert [rows[0].reward for rows in after.values()] == [5.0, 0.0]
