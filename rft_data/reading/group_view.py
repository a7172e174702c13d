"""One group side by side: what its rollouts said, what they earned, and what the operators made of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import GroupOutcome, member
from rft_data.reading.lineage import Judgement, judgements, stored_task

_COLUMNS = [
    "seq",
    "experience_id",
    "member",
    "turn",
    "taskset",
    "task_id",
    "completion_text",
    "finish_reason",
    "token_ids",
    "prompt_length",
    "version_min",
    "version_max",
    "reward",
    "reward_parts",
    "unscored_reason",
]


@dataclass(frozen=True, slots=True)
class Member:
    """One experience of a group."""

    seq: int
    experience_id: str
    member: int
    turn: int
    completion_text: str
    finish_reason: str
    completion_tokens: int | None
    """None when it is not tokenised yet."""
    versions: tuple[int, int] | None
    """Lowest and highest policy version among its sampled tokens."""
    reward: float | None
    reward_parts: str
    """JSON object, reward by component."""
    unscored_reason: str | None
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group, its task, and its members in order (member, turn)."""

    group_id: str
    task: Task | None
    outcome: GroupOutcome | Literal[""]
    """Empty when no run has closed the group."""
    dropped_by: str
    """Operator that dropped the whole group, or empty."""
    error: str
    members: tuple[Member, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def group_view(buffer: Buffer, group_id: str) -> GroupView:
    """A group with all that is known of its members.

    Raises: RecipeError if the buffer has neither rows nor an outcome of such a group.
    """
    mine = Compare("group_id", "eq", group_id)
    rows = buffer.read("experiences", _COLUMNS, mine).to_pylist()
    outcomes = buffer.read("groups", where=mine).to_pylist()
    if not rows and not outcomes:
        raise RecipeError(
            f"buffer {buffer.location} has no group '{group_id}'; `rft buffer head` shows group ids."
        )
    outcome = outcomes[-1] if outcomes else {"outcome": "", "dropped_by": "", "error": ""}
    said = judgements(buffer, [row["seq"] for row in rows])
    members = [_member(row, tuple(said.get(row["seq"], ()))) for row in rows]
    about = rows[0] if rows else outcomes[-1]
    return GroupView(
        group_id=group_id,
        task=stored_task(buffer, TaskKey(about["taskset"], about["task_id"])),
        outcome=member(GroupOutcome, outcome["outcome"]),
        dropped_by=outcome["dropped_by"],
        error=outcome["error"],
        members=tuple(sorted(members, key=lambda member: (member.member, member.turn, member.seq))),
    )


def _member(row: dict[str, Any], judged: tuple[Judgement, ...]) -> Member:
    tokens, lowest = row["token_ids"], row["version_min"]
    return Member(
        seq=row["seq"],
        experience_id=row["experience_id"],
        member=row["member"],
        turn=row["turn"],
        completion_text=row["completion_text"],
        finish_reason=row["finish_reason"],
        completion_tokens=None if tokens is None else len(tokens) - row["prompt_length"],
        versions=None if lowest is None else (lowest, row["version_max"]),
        reward=row["reward"],
        reward_parts=row["reward_parts"],
        unscored_reason=row["unscored_reason"],
        judgements=judged,
    )
