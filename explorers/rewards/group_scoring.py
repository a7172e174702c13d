"""Rewards of whole groups: computed when every rollout of a group is there, before its rows are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from explorers.rewards.composition import RewardPart, is_open
from explorers.rewards.contract import Outcome, Score
from explorers.rewards.scoring import Rewards
from explorers.rewards.unscored import reason_text
from rft_data.core.rows import Experience, Task
from rft_data.core.trajectory import row_trajectory
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

Members = Mapping[int, Sequence[Experience]]
"""The rows of each rollout of a group, by its place."""


async def score_group(rewards: Rewards, task: Task, members: Members, deadline_s: float) -> Members:
    """The rows, the last of each rollout with its whole reward; one that came without keeps its reason.

    A rollout that a reward of its own could not score, or whose gate is shut, is not shown to a reward of
    the group. All of them together have `deadline_s` seconds.
    """
    chosen = rewards.composition.chosen(task)
    if isinstance(chosen, Unscored) or not any(map(rewards.is_of_groups, chosen)):
        return members
    found: dict[int, dict[str, Outcome]] = {member: {} for member in members}
    try:
        async with asyncio.timeout(deadline_s):
            for part in chosen:
                if rewards.is_of_groups(part):
                    await _score_part(rewards, part, task, members, found)
    except TimeoutError:
        why = Unscored(f"the group was not scored within {deadline_s:g} s", UnscoredCause.TIMEOUT)
        for member, outcomes in found.items():
            missing = [part for part in chosen if rewards.is_of_groups(part) and part.name not in outcomes]
            found[member] = outcomes | {part.name: why for part in missing}
    scored: dict[int, Sequence[Experience]] = {}
    for member, rows in members.items():
        last = _last(rows)
        whole = rewards.composition.completed(last, found[member], chosen)
        scored[member] = [whole if row is last else row for row in rows]
    return scored


def without_group(rows: Sequence[Experience]) -> list[Experience]:
    """Rows of a group that failed, saying why their reward, which waited for it, stays open."""
    text = reason_text("the reward", Unscored("it compares the rollouts of a group, and the group failed"))
    return [row if row.unscored_reason else replace(row, reward=None, unscored_reason=text) for row in rows]


async def _score_part(
    rewards: Rewards, part: RewardPart, task: Task, members: Members, found: dict[int, dict[str, Outcome]]
) -> None:
    """Add what one reward says of the rollouts that it is for."""
    shown = {
        member: row_trajectory(task, rows)
        for member, rows in members.items()
        if not any(row.unscored_reason for row in rows) and is_open(part.gate, _known(rows, found[member]))
    }
    if not shown:
        return
    scored = await rewards.ask(part.name, task, list(shown.values()))
    for member, outcome in zip(shown, scored.outcomes, strict=True):
        found[member][part.name] = outcome


def _known(rows: Sequence[Experience], found: Mapping[str, Outcome]) -> dict[str, Outcome]:
    return {**{name: Score(value) for name, value in _last(rows).reward_parts.items()}, **found}


def _last(rows: Sequence[Experience]) -> Experience:
    """The row that holds a rollout's outcome."""
    return max(rows, key=lambda row: row.turn)
