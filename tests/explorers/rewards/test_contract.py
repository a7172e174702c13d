"""Which rewards there may be, told by their signature, and what they may return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from explorers.rewards.contract import RewardKind, Score, Subject, judge, outcome, reward_kind
from explorers.rewards.registry import REWARDS, built_in_kind, make_reward
from rft_data import Task, Trajectory, Unscored, UnscoredCause
from rft_data.core.errors import RecipeError
from tests.explorers.rewards import toy_rewards

TASK = Task("t", ({"role": "user", "content": "?"},))


def own(name: str, **args: Any) -> Any:
    return make_reward(f"tests.explorers.rewards.toy_rewards:{name}", args)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("length", RewardKind(Subject.COMPLETION, ("task", "completion"))),
        ("quick", RewardKind(Subject.COMPLETION, ("task", "completion"), asynchronous=True)),
        ("tools_used", RewardKind(Subject.TRAJECTORY, ("trajectory",))),
        ("final_state", RewardKind(Subject.TRAJECTORY, ("task", "trajectory"))),
        ("by_rank", RewardKind(Subject.GROUP, ("group",))),
        ("above_mean", RewardKind(Subject.GROUP, ("task", "group"), asynchronous=True)),
    ],
)
def test_the_signature_tells_what_a_reward_is_of(name: str, kind: RewardKind) -> None:
    assert reward_kind(own(name), name) == kind


def test_other_names_of_two_parameters_are_task_and_completion_as_ever() -> None:
    assert reward_kind(lambda one, text: 0.0, "x").takes == ("task", "completion")
    assert reward_kind(lambda *anything: 0.0, "x").takes == ("task", "completion")
    assert reward_kind(lambda completion, task: 0.0, "x").takes == ("completion", "task")


def test_arguments_of_a_function_are_bound_and_an_object_may_set_its_deadline() -> None:
    short = own("length", most=3.0)
    assert reward_kind(short, "x").takes == ("task", "completion")
    assert judge(short, reward_kind(short, "x"), TASK, "abcdef") == (Score(3.0),)
    assert reward_kind(own("Troubled"), "x").deadline_s == 0.5


@pytest.mark.parametrize(
    ("reward", "found"),
    [
        (toy_rewards.three_things, r"takes \(task, completion, answer\)"),
        (lambda: 0.0, r"takes \(\)"),
        (lambda text: 0.0, r"takes \(text\)"),
        (lambda task, *, completion: 0.0, r"takes \(task, completion\)"),
        (lambda trajectory, group: 0.0, r"takes \(trajectory, group\)"),
        (toy_rewards.Uncallable(), "is a Uncallable, which cannot be called"),
    ],
)
def test_any_other_signature_is_refused_with_what_is_wanted(reward: Any, found: str) -> None:
    with pytest.raises(RecipeError, match=f"reward 'mine' {found}.*wanted .task, completion., .trajectory."):
        reward_kind(reward, "mine")


def test_a_reward_of_trl_is_told_how_it_is_written_here() -> None:
    for reward in (lambda prompts, completions, **columns: [0.0], lambda completions, **columns: [0.0]):
        with pytest.raises(RecipeError, match=r"completions\), as TRL calls.*def reward\(task, completion\)"):
            reward_kind(reward, "mine")


def test_a_function_that_does_not_know_an_argument_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"cannot be built with the arguments .*'longest'"):
        own("length", longest=3)


def test_the_kind_of_a_built_in_is_known_without_making_it() -> None:
    assert all(built_in_kind(use) is not None for use in REWARDS)
    assert built_in_kind("tests.explorers.rewards.toy_rewards:quick") is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.5, Score(0.5)),
        (True, Score(1.0)),
        ({"a": 1.0, "b": 0.5}, Score(1.5, {"a": 1.0, "b": 0.5})),
        ({"reward": 0.25, "agreement": 1}, Score(0.25, {"agreement": 1.0})),
        (Unscored("no"), Unscored("no", UnscoredCause.REWARD)),
        (Unscored("no", UnscoredCause.JUDGE), Unscored("no", UnscoredCause.JUDGE)),
        (Unscored("no", "nonsense"), Unscored("no", UnscoredCause.REWARD)),
    ],
)
def test_a_value_parts_or_a_reason(value: Any, wanted: Any) -> None:
    assert outcome(value) == wanted


@pytest.mark.parametrize("value", [None, "1.0", float("nan"), {}, {"a": None}, [1.0]])
def test_anything_else_is_a_reason_and_never_a_zero(value: Any) -> None:
    found = outcome(value)
    assert isinstance(found, Unscored)
    assert found.reason.startswith("returned ")


def test_parts_of_a_trajectory_and_what_it_shows() -> None:
    said: list[Mapping[str, Any]] = [
        *TASK.messages,
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    rollout = Trajectory(TASK, "4", said, 1, token_ids=(1, 2, 3), environment={"score": 2})
    used, state = own("tools_used"), own("final_state")
    assert judge(used, reward_kind(used, "x"), TASK, rollout) == (Score(4.0, {"calls": 1.0, "tokens": 3.0}),)
    assert judge(state, reward_kind(state, "x"), TASK, rollout) == (Score(2.0),)


def test_a_reward_of_a_group_says_something_of_each_rollout() -> None:
    group = [Trajectory(TASK, text) for text in ("abc", "", "ab")]
    rank, few = own("by_rank"), own("one_too_few")
    assert judge(rank, reward_kind(rank, "x"), TASK, group) == (Score(2.0), Unscored("empty"), Score(1.0))
    found = judge(few, reward_kind(few, "x"), TASK, group)
    assert len(found) == 3
    assert "wanted one value for each of the 3 rollouts" in found[0].reason
    assert (
        judge(lambda group: Unscored("all"), RewardKind(Subject.GROUP, ("group",)), TASK, group)
        == (Unscored("all"),) * 3
    )


@pytest.mark.parametrize(
    ("error", "cause"),
    [(KeyError("x"), "reward"), (ConnectionResetError(), "infrastructure"), (TimeoutError(), "timeout")],
)
def test_the_type_of_an_error_tells_its_cause(error: Exception, cause: str) -> None:
    def broken(task: Task, completion: str) -> float:
        raise error

    (found,) = judge(broken, reward_kind(broken, "x"), TASK, "")
    assert isinstance(found, Unscored)
    assert found.cause == cause
