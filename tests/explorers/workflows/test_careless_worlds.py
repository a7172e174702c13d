"""Worlds that change what they are given, and give what no row can hold: their rows say what was sampled."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.recorded import with_world
from explorers.workflows.rollouts import Rollouts
from rft_data.core.errors import EngineError
from rft_data.core.rows import Experience, Task
from tests.explorers.workflows.test_worlds import PLACE, TASK, call, play, rows_of


@pytest.mark.parametrize("name", ["careless", "Shelf"])
def test_what_a_world_does_to_its_task_stays_in_its_rollout(tokenizer: Any, name: str) -> None:
    task = Task("sums", ({"role": "user", "content": "How many?"},), "5", metadata={"options": [1]})
    before = task.task_id
    rows_of(play(tokenizer, {"use": f"{PLACE}:{name}"}, "5", task=task))
    assert task.task_id == before


def test_a_tool_that_changes_its_arguments_changes_no_row(tokenizer: Any) -> None:
    task = replace(TASK, metadata={"options": []})
    played = play(tokenizer, {"use": f"{PLACE}:Shelf"}, call("sort", numbers=[3, 1]), "done", task=task)
    (row,) = rows_of(played)
    assert row.messages[1]["tool_calls"][0]["function"]["arguments"] == {"numbers": [3, 1]}


def test_a_tool_may_be_called_run_and_say_what_is_no_unicode(tokenizer: Any) -> None:
    task = replace(TASK, metadata={"options": []})
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:Shelf"}, call("run"), "done", task=task))
    assert row.messages[2]["content"] == "half ? of it"


def test_turns_are_those_that_were_sampled(tokenizer: Any) -> None:
    played = play(tokenizer, {"use": f"{PLACE}:twice_at_once"}, "5", "so", "thus")
    assert [row.metadata.get("turns") for row in rows_of(played)] == [None, 3]


@pytest.mark.parametrize("parts", [(), ("exact",)])
def test_a_number_that_is_too_large_is_no_reward(tokenizer: Any, parts: tuple[str, ...]) -> None:
    rewards = Rewards(dict.fromkeys(parts, 1.0), {"exact": ExactAnswer()} if parts else {})
    (row,) = rows_of(play(tokenizer, {"use": f"{PLACE}:huge"}, "5", rewards=rewards))
    assert row.reward is None
    assert "wanted a finite number" in str(row.unscored_reason)


def test_a_sum_of_rewards_that_is_too_large_is_unscored() -> None:
    columns = {"reward": 1.7e308, "reward_parts": {"exact": 1.7e308}, "unscored_reason": None}
    found = with_world(columns, 1e308)
    assert (found["reward"], found["unscored_reason"]) == (None, "the sum of the rewards is inf")


def test_an_attempt_that_fails_in_the_moment_it_is_cancelled_is_no_error_of_nobody() -> None:
    """asyncio logs an error that nobody read, with a traceback, when its task is gone."""
    unread: list[str] = []

    async def fails() -> list[Experience] | Exception:
        raise EngineError("broken")

    async def stop() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: unread.append(said["message"]))
        attempt = asyncio.create_task(fails())
        await asyncio.sleep(0)
        await Rollouts(Any, Any, Limits(), Meter())._stop(attempt)
        del attempt
        gc.collect()

    asyncio.run(stop())
    assert unread == []
