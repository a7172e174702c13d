"""Asynchronous rewards: many calls at once in one child, each with its own deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from explorers.limits import Limits
from explorers.rewards.scoring import Rewards, make_rewards
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from tests.processes import runs
from tests.waiting import came, wait_for

TOYS = "tests.explorers.rewards.toy_rewards"
TASK = Task("toys", ({"role": "user", "content": "?"},))
LIMITS = Limits(reward_processes=1, reward_deadline_s=20.0, retries=0)


@pytest.fixture(scope="module")
def rewards() -> Iterator[Rewards]:
    """Two asynchronous rewards in one child; the sync one has another."""
    made = make_rewards(
        [
            {"use": f"{TOYS}:Meeting", "args": {"size": 24}, "name": "meeting"},
            {"use": f"{TOYS}:Troubled", "name": "troubled"},
            {"use": f"{TOYS}:length", "name": "length"},
        ],
        LIMITS,
    )
    yield made
    made.close()


def ask(rewards: Rewards, name: str, *texts: str) -> list[float | Unscored]:
    async def all_at_once() -> list[float | Unscored]:
        found = await asyncio.gather(*(rewards.ask(name, TASK, text) for text in texts))
        return [one.value for one in found]

    return asyncio.run(asyncio.wait_for(all_at_once(), 60))


@pytest.mark.slow
def test_calls_run_beside_each_other(rewards: Rewards) -> None:
    assert ask(rewards, "meeting", *["x"] * 24) == [24.0] * 24
    assert ask(rewards, "length", "abc") == [3.0]


@pytest.mark.slow
def test_a_call_that_waits_too_long_is_stopped_and_nothing_else(rewards: Rewards) -> None:
    late = Unscored("took longer than 0.5 s and was stopped", UnscoredCause.TIMEOUT)
    before = rewards.restarts
    assert ask(rewards, "troubled", "fine", "waits", "fine", "refused") == [
        1.0,
        late,
        1.0,
        Unscored("raised ConnectionRefusedError: no endpoint", UnscoredCause.INFRASTRUCTURE),
    ]
    assert rewards.restarts == before


@pytest.mark.slow
@pytest.mark.parametrize("act", ["blocks", "dies"])
def test_a_call_that_takes_its_process_with_it_costs_no_call_its_reward_for_good(
    rewards: Rewards, act: str
) -> None:
    before = rewards.restarts
    first = ask(rewards, "troubled", act, "waits")
    assert {one.cause for one in first if isinstance(one, Unscored)} <= {
        UnscoredCause.TIMEOUT,
        UnscoredCause.INFRASTRUCTURE,
    }
    assert all(isinstance(one, Unscored) for one in first)
    assert ask(rewards, "troubled", "fine") == [1.0]
    assert rewards.restarts == before + 1


@pytest.mark.slow
def test_a_cancelled_call_is_cancelled_in_the_child_too(rewards: Rewards, tmp_path: Path) -> None:
    note = tmp_path / "note"

    async def give_up() -> None:
        asking = asyncio.create_task(rewards.ask("troubled", TASK, f"cancelled {note}"))
        await came(note.with_name("note.begun").exists)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(give_up())
    wait_for(note.exists)


@pytest.mark.slow
def test_close_ends_the_child_and_what_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_rewards([{"use": f"{TOYS}:Troubled"}], LIMITS)
    assert made._lane is not None
    child = made._lane._child
    assert child is not None
    asked = [made._lane.submit(f"{TOYS}:Troubled", TASK, "waits") for _ in range(300)]
    stop, loop = made._lane._stop, made._lane._loop

    async def stop_at_once() -> None:
        await stop()
        loop.stop()  # as soon as it may: a busy machine gives the loop no further turn

    monkeypatch.setattr(made._lane, "_stop", stop_at_once)
    made.close()
    made.close()
    for one in asked:
        with pytest.raises(RftError, match="closed"):
            one.result(timeout=20)
    with pytest.raises(RftError, match="closed"):
        made._lane.submit(f"{TOYS}:Troubled", TASK, "fine")
    assert not runs(child.process.pid)


@pytest.mark.slow
def test_a_signature_that_no_reward_may_have_is_an_error_at_the_start() -> None:
    with pytest.raises(RecipeError, match=r"three_things' takes \(task, completion, answer\); wanted"):
        make_rewards([{"use": f"{TOYS}:three_things"}], LIMITS)
