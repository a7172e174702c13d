"""One group: the completions of its rollouts, their rewards, and the verdicts of the operators."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypedDict

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import GroupOutcome, member
from rft_data.reading.lineage import judgements, stored_task
from rft_data.reading.lineage_parts import Judgement


class _Row(TypedDict):
    """The columns of an experience that its member shows."""

    seq: int
    experience_id: str
    member: int
    turn: int
    taskset: str
    task_id: str
    completion_text: str
    finish_reason: str
    token_ids: list[int] | None
    prompt_length: int
    version_min: int | None
    version_max: int | None
    reward: float | None
    reward_parts: str
    unscored_reason: str | None


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
    """None when the row is not tokenised yet."""
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
    """Empty: no run has closed the group."""
    dropped_by: str
    """Operator that dropped the whole group, or empty."""
    error: str
    members: tuple[Member, ...]

    def as_json(self) -> dict[str, object]:
        """The fields as plain values, for JSON."""
        return asdict(self)


def group_view(buffer: Buffer, group_id: str) -> GroupView:
    """The view of a group.

    Raises: RecipeError if the buffer has neither rows nor an outcome of it.
    """
    mine = Compare("group_id", "eq", group_id)
    rows = buffer.read("experiences", list(_Row.__annotations__), mine).to_pylist()
    outcomes = buffer.read("groups", where=mine).to_pylist()
    if not rows and not outcomes:
        raise RecipeError(
            f"buffer {buffer.location} has no group '{group_id}'; `rft buffer head` shows group ids."
        )
    outcome = outcomes[-1] if outcomes else {"outcome": "", "dropped_by": "", "error": ""}
    verdicts = judgements(buffer, [row["seq"] for row in rows])
    members = [_member(row, tuple(verdicts.get(row["seq"], ()))) for row in rows]
    about = rows[0] if rows else outcomes[-1]
    return GroupView(
        group_id=group_id,
        task=stored_task(buffer, TaskKey(about["taskset"], about["task_id"])),
        outcome=member(GroupOutcome, outcome["outcome"]),
        dropped_by=outcome["dropped_by"],
        error=outcome["error"],
        members=tuple(sorted(members, key=lambda member: (member.member, member.turn, member.seq))),
    )


def _member(row: _Row, judged: tuple[Judgement, ...]) -> Member:
    tokens, lowest, highest = row["token_ids"], row["version_min"], row["version_max"]
    return Member(
        seq=row["seq"],
        experience_id=row["experience_id"],
        member=row["member"],
        turn=row["turn"],
        completion_text=row["completion_text"],
        finish_reason=row["finish_reason"],
        completion_tokens=None if tokens is None else len(tokens) - row["prompt_length"],
        versions=None if lowest is None or highest is None else (lowest, highest),
        reward=row["reward"],
        reward_parts=row["reward_parts"],
        unscored_reason=row["unscored_reason"],
        judgements=judged,
    )
