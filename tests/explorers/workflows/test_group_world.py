"""A world's rewards for the rollouts of a group together, and the server that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import httpx
import pytest

from explorers.workflows.group_world import world_scored
from explorers.workflows.rollout_server import RolloutServer
from rft_data.core.rows import Task
from tests.rft_data.conftest import make_experience

TASK = Task("t", ({"role": "user", "content": "x"},))


class World:
    """Scores rollout 0, fails, or is never done."""

    def __init__(self, does: str) -> None:
        self.does = does

    def waits_for_group(self, task: Task) -> bool:
        return True

    async def score_group(self, task: Task, group_id: str, members: Collection[int]) -> Mapping[int, float]:
        if self.does == "hangs":
            await asyncio.sleep(100)
        if self.does == "fails":
            raise ValueError("no such board")
        return {0: 0.5}

    def forget_group(self, task: Task, group_id: str) -> None:
        return None


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("hangs", "timeout: reward 'world': the group was not scored within 0.05 s"),
        ("fails", "reward 'world': raised ValueError: no such board"),
    ],
)
def test_a_group_that_is_not_scored_says_whether_it_was_late_or_failed(does: str, reason: str) -> None:
    members = {number: [make_experience(number)] for number in (0, 1)}
    found = asyncio.run(world_scored(World(does), TASK, members, 0.05))
    assert [(row.reward, row.unscored_reason) for rows in found.values() for row in rows] == [
        (None, reason)
    ] * 2


def test_a_rollout_of_which_the_world_kept_nothing_is_as_it_was() -> None:
    members = {number: [make_experience(number)] for number in (0, 1)}
    found = asyncio.run(world_scored(World("scores"), TASK, members, 5.0))
    assert [rows[0].reward for rows in found.values()] == [1.5, 1.0]
    assert found[1] == members[1]


@pytest.mark.slow
def test_a_server_of_rollouts_runs_from_its_first_user_to_its_last() -> None:
    server = RolloutServer()

    async def answers(address: str) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                return (await client.post(f"{address}/t/none/reward")).status_code > 0
            except httpx.ConnectError:
                return False

    async def play() -> list[bool]:
        found = []
        for _ in range(2):
            async with server.served() as address:
                async with server.served() as same:
                    assert same == address
                found.append(await answers(address))
            found.append(await answers(address))
        return found

    assert asyncio.run(play()) == [True, False, True, False]
