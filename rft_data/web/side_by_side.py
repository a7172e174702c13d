"""The rollouts of a group beside each other: all turns of one in one column, and how each differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rft_data.reading.group_view import Member
from rft_data.web.differences import Differences, Piece

MOST_TURNS = 200
"""Rows of a group that are shown."""


class Against(StrEnum):
    """The rollout that the others are compared with."""

    BEST = "best"
    """The one with the highest effective reward, the first of several."""
    FIRST = "first"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Turn:
    """One row of a rollout."""

    row: Member
    pieces: tuple[Piece, ...]
    """Pieces of its completion, compared with the same turn of the reference; empty: it is not compared."""


@dataclass(frozen=True, slots=True)
class Column:
    """One rollout."""

    member: int
    turns: tuple[Turn, ...]
    reference: bool
    """Whether the others are compared with it."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The rollouts of a group."""

    columns: tuple[Column, ...]
    skipped: int
    """Completions that there was no time to compare."""
    hidden: int
    """Rows that are not shown."""


def side_by_side(members: Sequence[Member], against: Against) -> SideBySide:
    """The rows of a group, in order of member and turn, as one column for each rollout."""
    rollouts: dict[int, list[Member]] = {}
    for row in members[:MOST_TURNS]:
        rollouts.setdefault(row.member, []).append(row)
    reference = _reference(rollouts, against)
    wanted = {row.turn: row.completion_text for row in rollouts.get(reference, [])}
    differences = Differences()
    columns = []
    for member, rows in rollouts.items():
        turns = tuple(
            Turn(
                row,
                differences.between(wanted[row.turn], row.completion_text)
                if member != reference and row.turn in wanted
                else (),
            )
            for row in rows
        )
        columns.append(Column(member, turns, member == reference))
    return SideBySide(tuple(columns), differences.skipped, max(0, len(members) - MOST_TURNS))


def _reference(rollouts: dict[int, list[Member]], against: Against) -> int:
    """The rollout to compare with; -1 for none."""
    if against is Against.NONE or len(rollouts) < 2:
        return -1
    if against is Against.FIRST:
        return next(iter(rollouts))
    return max(rollouts, key=lambda member: _effective(rollouts[member][-1]))


def _effective(row: Member) -> float:
    """The reward that counts; below all others where there is none."""
    shaped = row.judgements[-1].shaped_reward if row.judgements else None
    reward = row.reward if shaped is None else shaped
    return -math.inf if reward is None or math.isnan(reward) else reward
