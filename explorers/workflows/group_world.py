"""Rewards that a world gives the rollouts of a group together, when all of them are there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from explorers.rewards.composition import RewardColumns
from explorers.rewards.contract import raised
from explorers.rewards.group_scoring import Members
from explorers.workflows.recorded import WorldReward, with_world
from rft_data.core.rows import Experience, Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored, Workflow


class GroupWorld(Protocol):
    """A workflow whose world may compare the rollouts of a group; it keeps of them what that needs."""

    def waits_for_group(self, task: Task) -> bool:
        """Whether the world's reward of a rollout of this task depends on the others of its group."""
        ...

    async def score_group(
        self, task: Task, group_id: str, members: Collection[int]
    ) -> Mapping[int, WorldReward]:
        """The reward of each of these rollouts, by its place; what was kept of the group is let go."""
        ...

    def forget_group(self, task: Task, group_id: str) -> None:
        """Let go what is kept of a group that will not be scored; no effect on any other."""
        ...


def group_world(workflow: Workflow, task: Task) -> GroupWorld | None:
    """The workflow, where the world that plays this task compares the rollouts of a group."""
    if not hasattr(workflow, "waits_for_group") or not workflow.waits_for_group(task):
        return None
    return cast("GroupWorld", workflow)


async def world_scored(world: GroupWorld, task: Task, members: Members, deadline_s: float) -> Members:
    """The rows, the last of each rollout with the world's reward; one of which nothing was kept is as it was.

    Args: members: of one group. deadline_s: for all of them together.
    """
    limit = asyncio.timeout(deadline_s)
    try:
        async with limit:
            found = dict(await world.score_group(task, _group_id(members), set(members)))
    except Exception as err:  # noqa: BLE001 - what scores a group is user code
        late = Unscored(f"the group was not scored within {deadline_s:g} s", UnscoredCause.TIMEOUT)
        found = dict.fromkeys(members, late if limit.expired() else raised(err))
    return {
        member: _with_reward(rows, found[member]) if member in found else rows
        for member, rows in members.items()
    }


def _with_reward(rows: Sequence[Experience], given: WorldReward) -> list[Experience]:
    last = max(rows, key=lambda row: row.turn)
    columns = RewardColumns(
        reward=last.reward, reward_parts=last.reward_parts, unscored_reason=last.unscored_reason
    )
    whole = replace(last, **with_world(columns, given))
    return [whole if row is last else row for row in rows]


def _group_id(members: Members) -> str:
    return next(row.group_id for rows in members.values() for row in rows)
