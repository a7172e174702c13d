"""From stored rows to closed groups: operators judge the rows, their verdicts are stored, then the groups.

The loop closes the groups that explorers return. A resumed run closes the groups that were stored but not
closed when it was killed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.effective_reward import effective_rewards
from rft_data.core.errors import ConflictError
from rft_data.core.failpoints import failpoint
from rft_data.core.filters import And, Compare
from rft_data.core.groups import GroupResult, Played, Ticket
from rft_data.core.protocols import Pipeline
from rft_data.core.rows import TaskKey
from rft_data.core.words import GroupOutcome, RowSource, Verdict
from rft_data.exchange.pairs import store_pairs
from rft_data.sampler.awaiting import Awaiting

_ORDINAL = re.compile(r"-\d+$")
"""The end of a group id that a sampler gave out."""
_INTERRUPTED = ["seq", "group_id", "taskset", "task_id", "member", "version_min"]
"""Columns that tell what an unclosed group is."""
_FIRST = 0
"""The version of a run that plays a model behind an endpoint: its only one."""
_NO_ROUND = -1
"""The round of a group whose ticket was lost with its explorer."""


class _OpenRow(TypedDict):
    """A row of a group that is not closed."""

    seq: int
    group_id: str
    taskset: str
    task_id: str
    member: int
    version_min: int | None


class _JudgedRow(TypedDict):
    """A stored row with the verdict on it."""

    seq: int
    group_id: str
    member: int
    turn: int
    version_min: int | None
    """None where an endpoint sampled it."""
    reward: float | None
    """The effective one."""
    verdict: Verdict
    dropped_by: str
    tokens: int
    """Sampled ones."""


@dataclass(frozen=True)
class GroupCloser:
    """Closes the groups of a run: operators judge the stored rows, then each group is stored."""

    buffer: Buffer
    pipeline: Pipeline
    run_id: str
    attempt: int
    """The number of this start of the run."""
    least_members: int
    """Fewest rollouts of a group that may be trained on."""
    awaiting: Awaiting | None = None
    """Keeps groups open whose rewards come later; None: every group is closed when it arrives."""
    explored_elsewhere: bool = False
    """Whether another process explores and closes the groups: those without an end are its affair."""

    def ready(self, played: Sequence[Played]) -> list[Played]:
        """The groups to close now, of those that arrived and those that wait for delayed rewards."""
        return list(played) if self.awaiting is None else self.awaiting.sift(played)

    def close(self, played: Sequence[Played]) -> list[GroupResult]:
        """Judge the stored rows of these groups, with the rewards that came later, and close them."""
        rows = self.buffer.take([seq for group in played for seq in group.seqs])
        return self.judge(played, rows, None if self.awaiting is None else self.awaiting.with_rewards(rows))

    def judge(
        self, played: Sequence[Played], rows: pa.Table, rewarded: pa.Table | None = None
    ) -> list[GroupResult]:
        """Run the operators over rows; store verdicts, the preference pairs they found, then the groups.

        Args: rows: as they are stored. rewarded: the same with rewards that came later; None: none did.
        """
        failpoint("judge.begin")
        annotations = self.pipeline.run(rows if rewarded is None else rewarded)
        if rewarded is not None:
            annotations = _with_late(annotations, rows, rewarded)
        self.buffer.annotate(annotations)
        store_pairs(self.buffer, rows, annotations)
        failpoint("judge.annotated")
        results = group_results(played, rows, annotations)
        named = {"run_id": self.run_id, "attempt": self.attempt}
        groups = [group_row(group, result, named) for group, result in zip(played, results, strict=True)]
        self.buffer.add_rows("groups", groups)
        failpoint("judge.closed")
        return results

    def interrupted(self, tasks: Container[TaskKey]) -> list[Played]:
        """Groups that are not closed, and whose rows a killed process had stored.

        A group with fewer than `least_members`, or whose task is gone, is `cancelled`: it is accounted for
        and never trained.
        """
        if self.explored_elsewhere:
            return []
        mine = Compare("run_id", "eq", self.run_id)
        closed = set(self.buffer.read("groups", ["group_id"], mine)["group_id"].to_pylist())
        rollouts = And((mine, Compare("source", "eq", RowSource.ROLLOUT)))
        members: dict[str, list[_OpenRow]] = {}
        for row in self.buffer.read("experiences", _INTERRUPTED, rollouts).to_pylist():
            # a group whose id has no ordinal was not admitted by a sampler: it is not closed by this run
            if row["group_id"] not in closed and _ORDINAL.search(row["group_id"]):
                members.setdefault(row["group_id"], []).append(row)
        return [self._stored(group_id, rows, tasks) for group_id, rows in members.items()]

    def recover(self, tasks: Container[TaskKey]) -> list[GroupResult]:
        """Close the groups that a killed run had stored but not closed, except those that are to wait."""
        found = self.ready(self.interrupted(tasks))
        if not found:
            return []
        try:
            return self.close(found)
        except ConflictError:
            closed = {result.ticket.group_id for result in stored_groups(self.buffer, self.run_id)}
            if closed.isdisjoint(group.ticket.group_id for group in found):
                raise
            # a late call of the killed run reached the hub and closed some of them: look again
            return self.recover(tasks)

    def history(self) -> list[GroupResult]:
        """Every group of the run that is closed, and those that wait for rewards (outcome `awaiting`)."""
        waiting = [] if self.awaiting is None else self.awaiting.history()
        return stored_groups(self.buffer, self.run_id) + waiting

    def _stored(self, group_id: str, rows: Sequence[_OpenRow], tasks: Container[TaskKey]) -> Played:
        key = TaskKey(rows[0]["taskset"], rows[0]["task_id"])
        version = _oldest(rows, _FIRST)
        ticket = Ticket(group_id, int(group_id.rsplit("-", 1)[1]), version, _NO_ROUND)
        seqs = tuple(row["seq"] for row in rows)
        if key in tasks and len({row["member"] for row in rows}) >= self.least_members:
            return Played(ticket, key, GroupOutcome.ARRIVED, seqs, len(seqs))
        why = "its explorer ended before the group was whole"
        return Played(ticket, key, GroupOutcome.CANCELLED, seqs, len(seqs), why)


def _with_late(annotations: pa.Table, rows: pa.Table, rewarded: pa.Table) -> pa.Table:
    """`annotations` whose `shaped_reward` has the rewards that came later, where operators shaped none."""
    late = pc.if_else(rows["reward"].is_null(), rewarded["reward"], pa.scalar(None, pa.float32()))
    place = annotations.schema.get_field_index("shaped_reward")
    shaped = pc.coalesce(annotations["shaped_reward"], late)
    return annotations.set_column(place, annotations.schema.field(place), shaped)


def group_results(played: Sequence[Played], rows: pa.Table, annotations: pa.Table) -> list[GroupResult]:
    """Result of each group, from its stored rows and their verdicts (same order as `rows`)."""
    names = ["seq", "group_id", "member", "turn", "version_min"]
    verdicts = annotations.select(["verdict", "dropped_by"]).to_pylist()
    rewards = effective_rewards(
        pa.table({"reward": rows["reward"], "shaped_reward": annotations["shaped_reward"]})
    )
    sampled = sampled_tokens(rows["action_mask"])
    rows = rows.select(names).append_column("reward", rewards).append_column("tokens", sampled)
    judged: dict[str, list[_JudgedRow]] = {}
    for row, verdict in zip(rows.to_pylist(), verdicts, strict=True):
        judged.setdefault(row["group_id"], []).append(cast("_JudgedRow", {**row, **verdict}))
    return [_result(group, judged.get(group.ticket.group_id, [])) for group in played]


def _result(group: Played, mine: Sequence[_JudgedRow]) -> GroupResult:
    whole = len(mine) == group.rows  # else validation refused some rows: a group is used whole or not at all
    kept = [row["seq"] for row in mine if row["verdict"] == Verdict.KEPT]
    last = {row["member"]: row["seq"] for row in sorted(mine, key=lambda row: row["turn"])}
    return GroupResult(
        ticket=group.ticket,
        task=group.task,
        rewards=tuple(row["reward"] for row in mine if row["seq"] == last[row["member"]]),
        outcome=group.outcome if whole or group.outcome != GroupOutcome.ARRIVED else GroupOutcome.CANCELLED,
        version_min=_oldest(mine, group.ticket.version),
        seqs=tuple(kept) if whole and group.outcome == GroupOutcome.ARRIVED else (),
        dropped_by="" if kept or not mine else mine[0]["dropped_by"],
        tokens=sum(row["tokens"] for row in mine),
    )


def _oldest(rows: Sequence[_OpenRow] | Sequence[_JudgedRow], otherwise: int) -> int:
    """The lowest version that sampled any of the rows; `otherwise` where none of ours sampled them."""
    known = [row["version_min"] for row in rows if row["version_min"] is not None]
    return min(known, default=otherwise)


def sampled_tokens(masks: pa.ChunkedArray) -> pa.Array:
    """Sampled tokens of each row, from the column `action_mask`; 0 for a row without one."""
    column = masks.combine_chunks()
    owners, taken = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column).to_numpy()
    return pa.array(np.bincount(owners, taken, minlength=len(column)), pa.int64(), safe=False)


def group_row(group: Played, result: GroupResult, named: Mapping[str, object]) -> dict[str, object]:
    """The row of the `groups` table for one closed ticket; `named`: its `run_id` and `attempt`."""
    return {
        **named,
        "group_id": result.ticket.group_id,
        "ordinal": result.ticket.ordinal,
        "round": result.ticket.round,
        "taskset": result.task.taskset,
        "task_id": result.task.task_id,
        "version": result.ticket.version,
        "version_min": result.version_min,
        "outcome": result.outcome,
        "rewards": list(result.rewards),
        "seqs": list(result.seqs),
        "dropped_by": result.dropped_by,
        "error": group.error,
    }


def stored_groups(buffer: Buffer, run_id: str, first: int = 0) -> list[GroupResult]:
    """The run's closed groups from the ordinal `first` on, in order of admission."""
    where = And((Compare("run_id", "eq", run_id), Compare("ordinal", "ge", first)))
    rows = buffer.read("groups", where=where).to_pylist()
    return [
        GroupResult(
            ticket=Ticket(row["group_id"], row["ordinal"], row["version"], row["round"]),
            task=TaskKey(row["taskset"], row["task_id"]),
            rewards=tuple(row["rewards"]),
            outcome=row["outcome"],
            version_min=row["version_min"],
            seqs=tuple(row["seqs"]),
            dropped_by=row["dropped_by"],
        )
        for row in sorted(rows, key=lambda row: row["ordinal"])
    ]
