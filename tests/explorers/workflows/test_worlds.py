"""The three workflows that play a world: exact rows, its reward, and typed ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import ChosenWorkflow, make_workflow, make_workflows
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import ContextOverflow, RecipeError, RowError, UnknownComponentError
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import RolloutContext
from tests.explorers.conversations.conftest import SayingEngine
from tests.explorers.environments import worlds

PLACE = "tests.explorers.environments.worlds"
NONE = Rewards({}, {})
TASK = Task("sums", ({"role": "user", "content": "How many?"},), answer="5")
CTX = RolloutContext("run", "g", 2, 0, "e0", "rollout", Sampling(64))


class Room(SayingEngine):
    """Says the next text, and overflows at a prompt of so many tokens."""

    room = 10_000

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        if len(prompt_ids) >= self.room:
            raise ContextOverflow("no room")
        return await super().generate(prompt_ids, sampling)


def play(
    tokenizer: Any,
    settings: dict[str, Any],
    *says: str,
    task: Task = TASK,
    rewards: Rewards = NONE,
    room: int = 10_000,
) -> tuple[list[Experience] | Exception, Room, Any]:
    """One rollout with its deadline and checks, the engine, and the workflow."""
    workflow = make_workflow(settings, tokenizer, rewards)
    engine = Room(tokenizer, [f"{text}<|im_end|>" for text in says])
    engine.room = room
    rollouts = Rollouts(engine, workflow, Limits(retries=1), Meter())
    outcome = asyncio.run(rollouts.play(task, CTX))
    return outcome, engine, workflow


def rows_of(played: tuple[list[Experience] | Exception, Room, Any]) -> list[Experience]:
    assert isinstance(played[0], list), played[0]
    return played[0]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# --- functions -------------------------------------------------------------------------------------


def test_a_function_plays_and_its_number_is_the_reward(tokenizer: Any) -> None:
    settings = {"use": f"{PLACE}:twice", "args": {"args": {"worth": 0.5}}}
    played = play(tokenizer, settings, "four", "5")
    (row,) = rows_of(played)
    assert (row.reward, row.reward_parts, row.unscored_reason) == (0.5, {"world": 0.5}, None)
    assert row.metadata == {"end": "finished", "turns": 2}
    assert [message["role"] for message in row.messages] == ["user", "assistant", "user", "assistant"]
    assert list(row.token_ids) == played[1].seen[1] + played[1].said[1]
    assert sum(row.action_mask) == len(played[1].said[0]) + len(played[1].said[1])


def test_a_world_is_a_part_beside_the_rewards_of_the_recipe(tokenizer: Any) -> None:
    rewards = Rewards({"exact_answer": 2.0}, {"exact_answer": ExactAnswer()})
    task = replace(TASK, answer="#### 5")
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:twice"}, "4", "#### 5", task=task, rewards=rewards))
    assert row.reward_parts == {"exact_answer": 1.0, "world": 1.0}
    assert row.reward == 3.0


@pytest.mark.parametrize(
    ("returned", "reward", "parts", "reason"),
    [
        (0.25, 0.25, {"world": 0.25}, None),
        ([1, {"form": 0.5}], 1.0, {"world": 1.0, "world.form": 0.5}, None),
        ("good", None, {}, "gave 'good'; wanted a finite number"),
        ("nan", None, {}, "gave nan; wanted a finite number"),
        (None, None, {}, "the world gave no reward"),
    ],
)
def test_what_a_function_returns_is_a_reward_or_a_reason(
    tokenizer: Any, returned: Any, reward: float | None, parts: dict[str, float], reason: str | None
) -> None:
    task = replace(TASK, metadata={"returns": returned})
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:given"}, "5", task=task))
    assert (row.reward, row.reward_parts) == (reward, parts)
    assert (row.unscored_reason or "").find(reason or "") >= 0
    assert (row.unscored_reason is None) == (reason is None)


def test_unscored_is_never_a_zero(tokenizer: Any) -> None:
    rewards = Rewards({"exact_answer": 1.0}, {"exact_answer": ExactAnswer()})
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:away"}, "5", rewards=rewards))
    assert row.reward is None
    assert "the judge is away" in (row.unscored_reason or "")


@pytest.mark.parametrize(
    ("budget", "room", "end"), [(25, 10_000, "budget"), (None, 90, "context")], ids=["budget", "context"]
)
def test_a_rollout_that_meets_a_limit_ends_there_and_is_scored(
    tokenizer: Any, budget: int | None, room: int, end: str
) -> None:
    rewards = Rewards({"exact_answer": 1.0}, {"exact_answer": ExactAnswer()})
    settings = {"use": f"{PLACE}:endless", "args": {} if budget is None else {"budget": budget}}
    played = play(tokenizer, settings, *["#### 5 apples"] * 30, rewards=rewards, room=room)
    (row,) = rows_of(played)
    assert row.metadata["end"] == end
    assert row.metadata["turns"] == len(played[1].said) > 1
    assert row.reward == 0.0
    assert played[2].metrics()[f"rollouts_ended_by_{end}"] == 1.0


def test_a_function_that_never_asks_the_model_is_a_failed_rollout(tokenizer: Any) -> None:
    outcome, _, _ = play(tokenizer, {"use": "function", "args": {"play": f"{PLACE}:silent"}})
    assert isinstance(outcome, RowError)
    assert "nothing was sampled" in str(outcome)


# --- tools -----------------------------------------------------------------------------------------


def test_tools_are_called_until_the_model_answers(tokenizer: Any) -> None:
    says = [call("add", number=2) + call("add", number=3), call("subtract"), "5"]
    played = play(tokenizer, {"use": f"{PLACE}:Desk"}, *says)
    (row,) = rows_of(played)
    assert (row.reward, row.reward_parts) == (5.0, {"world": 5.0})
    assert row.metadata == {
        "end": "finished",
        "turns": 3,
        "tool_calls": 3,
        "tool_failures": {"unknown": 1},
    }
    assert row.messages[0]["content"] == "How many? (desk of sums)"
    answers = [message["content"] for message in row.messages if message["role"] == "tool"]
    assert answers[:2] == ["2", "5"]
    assert "there is no tool 'subtract'" in answers[2]
    assert row.completion_text == "5"
    assert {tool["function"]["name"] for tool in row.tools or ()} == {"add", "block", "fail", "meet", "wait"}
    assert list(row.token_ids) == played[1].seen[2] + played[1].said[2]
    counts = played[2].metrics()
    assert (counts["turns"], counts["tool_calls"], counts["tool_failures_unknown"]) == (3.0, 3.0, 1.0)
    assert played[2].metrics()["turns"] == 0.0
    played[2].close()
    assert played[2].pool.open == 0


def test_a_trl_class_plays_unchanged(tokenizer: Any) -> None:
    task = replace(TASK, answer="3", metadata={"unit": "apples"})
    says = [call("increment", step=1), call("increment", step=2), "done"]
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:TrlCounter"}, *says, task=task))
    assert row.messages[0]["content"] == "How many? Count to 3, apples."
    assert row.reward_parts == {"world": 1.0}


def test_arguments_of_tools_may_have_any_name(tokenizer: Any) -> None:
    says = [call("fetch", method="GET", deadline_s=1.5), "done"]
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:Fetcher"}, *says))
    assert row.messages[2]["content"] == "GET within 1.5"
    assert "tool_failures" not in row.metadata


def test_the_calls_of_the_last_turn_are_played(tokenizer: Any) -> None:
    settings = {"use": "tools", "args": {"tools": f"{PLACE}:Desk", "turns": 2}}
    (row,) = rows_of(play(tokenizer, settings, call("add", number=1), call("add", number=1), "never"))
    assert row.metadata["end"] == "turns"
    assert row.reward == 2.0


def test_a_malformed_call_is_answered_and_the_rollout_goes_on(tokenizer: Any) -> None:
    says = ['<tool_call>\n{"name": "add", "arguments": {number: 2}}\n</tool_call>', "5"]
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:Desk"}, *says))
    assert row.metadata["tool_failures"] == {"malformed": 1}
    assert "not valid JSON" in next(m["content"] for m in row.messages if m["role"] == "tool")


def test_a_reset_that_raises_fails_its_rollout_and_a_connection_is_tried_again(tokenizer: Any) -> None:
    settings = {"use": f"{PLACE}:Unlucky"}
    worlds.Unlucky.made.clear()
    outcome, _, _ = play(tokenizer, settings, task=replace(TASK, metadata={"raises": "broken"}))
    assert f"'{PLACE}:Unlucky' raised in reset: KeyError: 'the map'" in str(outcome)
    outcome, _, workflow = play(tokenizer, settings, task=replace(TASK, metadata={"raises": "down"}))
    assert isinstance(outcome, ConnectionError)
    assert len(worlds.Unlucky.made) == 1 + 2  # the second one was tried again, with another instance
    assert workflow.pool.leaks == 0


def test_what_reset_and_reward_do_wrong_is_typed(tokenizer: Any) -> None:
    outcome, _, _ = play(tokenizer, {"use": f"{PLACE}:Wordless"})
    assert "reset returned a int; wanted text or None" in str(outcome)
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:Spiteful"}, "5"))
    assert row.reward is None
    assert "reward raised ZeroDivisionError: no total" in (row.unscored_reason or "")


@pytest.mark.slow
def test_nothing_is_left_of_rollouts_that_are_cancelled_in_the_middle(tokenizer: Any) -> None:
    """In `reset`, in a call that waits, in a call that blocks, and while the model speaks."""
    workflow: Any = make_workflow({"use": f"{PLACE}:Desk"}, tokenizer, NONE)
    worlds.Desk.closed.clear()

    class Slow(Room):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
            await asyncio.sleep(0.002)
            return await super().generate(prompt_ids, sampling)

    async def cancelled() -> None:
        says = [call("wait", seconds=0.02), call("block", seconds=0.02), "5"] * 34
        engine = Slow(tokenizer, [f"{text}<|im_end|>" for text in says] * 4)
        rollouts = Rollouts(engine, workflow, Limits(), Meter())
        for pause in (0.0, 0.004, 0.03):
            playing = [asyncio.create_task(rollouts.play(TASK, replace(CTX, member=n))) for n in range(100)]
            await asyncio.sleep(pause)
            for one in playing:
                one.cancel()
            await asyncio.gather(*playing, return_exceptions=True)

    asyncio.run(cancelled())
    workflow.close()
    assert (workflow.pool.open, workflow.pool.leaks) == (0, 0)
    assert len(worlds.Desk.closed) == workflow.pool.made > 100


# --- environments ----------------------------------------------------------------------------------


def lake(**args: Any) -> dict[str, Any]:
    return {"use": f"{PLACE}:Lake", "args": {"actions": {"left": 0, "right": 1}, **args}}


def test_an_environment_is_one_row_whose_reward_is_the_sum(tokenizer: Any) -> None:
    played = play(tokenizer, lake(invalid_reward=-0.5), "jump", "right", "go right")
    (row,) = rows_of(played)
    said = [message["content"] for message in row.messages if message["role"] == "user"]
    assert said == ["How many?\n\n0", "That is no action; wanted one of: left, right.\n0", "1"]
    assert (row.reward, row.reward_parts) == (0.5, {"world": 0.5})
    assert row.metadata == {
        "end": "finished",
        "turns": 3,
        "invalid_actions": 1,
        "environment_state": {"text": "2", "done": True},
    }
    assert row.environment is not None
    assert list(row.token_ids) == played[1].seen[2] + played[1].said[2]


@pytest.mark.parametrize("history", [True, False])
def test_steps_are_rows_with_their_states_and_rewards(tokenizer: Any, history: bool) -> None:
    settings = lake(shape="step_wise" if history else "step_wise_fresh")
    played = play(tokenizer, settings, "right", "left", "right", "right")
    rows = rows_of(played)
    assert [row.turn for row in rows] == [0, 1, 2, 3]
    assert [row.reward for row in rows] == [0.0, 0.0, 0.0, 1.0]
    states = [row.environment for row in rows]
    assert (states[0] == states[2], states[1] == states[3], states[0] == states[1]) == (True, True, False)
    assert [len(row.messages) for row in rows] == ([2, 4, 6, 8] if history else [2] * 4)
    for n, row in enumerate(rows):
        assert list(row.token_ids) == played[1].seen[n] + played[1].said[n]
        assert sum(row.action_mask) == len(played[1].said[n])
    assert [row.metadata.get("end") for row in rows] == [None] * 3 + ["finished"]


def test_an_environment_by_its_id_is_played_at_most_so_many_turns(tokenizer: Any) -> None:
    args = {"environment": "FrozenLake-v1", "args": {"is_slippery": False}, "turns": 3, "actions": {"up": 3}}
    (row,) = rows_of(play(tokenizer, {"use": "environment", "args": args}, "up", "up", "up"))
    assert (row.metadata["end"], row.metadata["turns"], row.reward) == ("turns", 3, 0.0)


# --- what can be seen at the start -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"use": f"{PLACE}:plain"}, r"is no coroutine function; write `async def play\(task, model\)`"),
        ({"use": f"{PLACE}:alone"}, "cannot be called with a task, a model"),
        ({"use": f"{PLACE}:twice", "args": {"args": {"wort": 1}}}, r"arguments \['wort'\]"),
        ({"use": f"{PLACE}:twice", "args": {"budget": 0}}, "args.budget is 0; wanted a whole number, 1"),
        ({"use": f"{PLACE}:twice", "args": {"turns": 1}}, r"cannot be built with .*\['play', 'turns'\]"),
        ({"use": f"{PLACE}:Undocumented"}, "Undocumented.add cannot be offered"),
        ({"use": f"{PLACE}:Unmakeable"}, r"cannot be made \(FileNotFoundError: no such table\)"),
        ({"use": f"{PLACE}:Desk", "args": {"turns": 0}}, "args.turns is 0"),
        ({"use": f"{PLACE}:Desk", "args": {"pool": {"sise": 1}}}, "did you mean 'size'"),
        ({"use": f"{PLACE}:Desk", "args": {"call_deadline_s": -1}}, "wanted seconds above 0"),
        ({"use": f"{PLACE}:Desk", "args": {"pool": {"start_deadline_s": "1"}}}, "start_deadline_s is '1'"),
        ({"use": f"{PLACE}:PLACE"}, "has no 'PLACE'"),
        (lake(shape="steps"), "wanted one of: conversation, step_wise, step_wise_fresh"),
        (lake(actions={"jump": 7}), r"'actions' has \{'jump': 7\}"),
        ({"use": f"{PLACE}:annotations"}, "is a _Feature; wanted a workflow class"),
    ],
)
def test_a_mistake_is_one_error_when_the_workflow_is_made(
    tokenizer: Any, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises((RecipeError, UnknownComponentError), match=says):
        make_workflow(settings, tokenizer, NONE)


def test_tasks_choose_among_the_workflows_of_the_recipe(tokenizer: Any) -> None:
    chosen = make_workflows(
        {"use": "single_turn"},
        {"talk": {"use": f"{PLACE}:twice"}, "lake": lake(turns=1)},
        tokenizer,
        NONE,
    )
    assert isinstance(chosen, ChosenWorkflow)

    async def played(name: str | None, *says: str) -> list[Experience]:
        engine = Room(tokenizer, [f"{text}<|im_end|>" for text in says])
        return await chosen.run(replace(TASK, workflow=name), engine, CTX)

    assert len(asyncio.run(played(None, "5"))[0].messages) == 2
    assert asyncio.run(played("talk", "4", "5"))[0].reward == 1.0
    assert asyncio.run(played("lake", "left"))[0].metadata["end"] == "turns"
    assert len(asyncio.run(played("single_turn", "5"))[0].messages) == 2
    with pytest.raises(RowError, match="the workflow 'os:system', the recipe has"):
        asyncio.run(played("os:system"))
    assert chosen.metrics()["turns"] == 3.0
    chosen.close()


def test_each_of_the_workflows_is_closed() -> None:
    closed: list[str] = []

    def world(name: str) -> Any:
        return type("World", (), {"close": lambda _: closed.append(name)})()

    ChosenWorkflow("own", world("own"), {"other": world("other"), "plain": type("Plain", (), {})()}).close()
    assert sorted(closed) == ["other", "own"]


def test_a_named_workflow_does_not_take_the_place_of_the_recipes_own(tokenizer: Any) -> None:
    own = {"use": "function", "args": {"play": f"{PLACE}:twice"}}
    named = {"function": {"use": "function", "args": {"play": f"{PLACE}:given"}}}
    chosen = make_workflows(own, named, tokenizer, NONE)

    async def turns(name: str | None) -> int:
        engine = Room(tokenizer, ["4<|im_end|>", "5<|im_end|>"])
        task = replace(TASK, workflow=name, metadata={"returns": 1})
        return (await chosen.run(task, engine, CTX))[-1].metadata["turns"]

    assert [asyncio.run(turns(name)) for name in (None, "function")] == [2, 1]
