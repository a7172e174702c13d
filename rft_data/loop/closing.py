"""From stored rows to closed groups: operators judge, the verdicts are stored, then the groups.

The online loop does this for what explorers bring home; a restarted run does it for what was stored
but not judged when it was killed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError
from rft_data.core.failpoints import failpoint
from rft_data.core.filters import And, Compare
from rft_data.core.protocols import Pipeline
from rft_data.core.rows import GroupResult, Played, TaskKey, Ticket
from rft_data.exchange.pairs import store_pairs

_OF_A_TICKET = re.compile(r"-\d+$")
_NO_ROUND = -1
"""The round of a group whose ticket was lost with its explorer."""


class Waiting(Protocol):
    """What keeps groups until their rewards have come (`rft_data.sampler.awaiting.Awaiting`)."""

    def sift(self, played: Sequence[Played]) -> list[Played]:
        """Those to be judged now."""
        ...

    def with_rewards(self, rows: pa.Table) -> pa.Table:
        """Stored rows with the rewards that came later."""
        ...


def judge(
    played: Sequence[Played], rows: pa.Table, pipeline: Pipeline, buffer: Buffer, run_id: str, attempt: int
) -> list[GroupResult]:
    """Run the operators over the groups' stored rows and write verdicts, the pairs they found, and groups."""
    failpoint("judge.begin")
    annotations = pipeline.run(rows)
    buffer.annotate(annotations)
    store_pairs(buffer, rows, annotations)
    failpoint("judge.annotated")
    results = group_results(played, rows, annotations)
    named = {"run_id": run_id, "attempt": attempt}
    buffer.add_rows("groups", [group_row(p, r, named) for p, r in zip(played, results, strict=True)])
    failpoint("judge.closed")
    return results


def group_results(played: Sequence[Played], rows: pa.Table, annotations: pa.Table) -> list[GroupResult]:
    """What became of each group, from its stored rows and their verdicts (same order as `rows`)."""
    names = ["seq", "group_id", "version_min", "reward"]
    verdicts = annotations.select(["verdict", "dropped_by"]).to_pylist()
    judged: dict[str, list[dict[str, Any]]] = {}
    for row, verdict in zip(rows.select(names).to_pylist(), verdicts, strict=True):
        judged.setdefault(row["group_id"], []).append({**row, **verdict})
    return [_result(group, judged.get(group.ticket.group_id, [])) for group in played]


def _result(group: Played, mine: Sequence[Mapping[str, Any]]) -> GroupResult:
    whole = len(mine) == group.rows  # else the door refused some: a group is never torn
    kept = [row["seq"] for row in mine if row["verdict"] == "kept"]
    return GroupResult(
        ticket=group.ticket,
        task=group.task,
        rewards=tuple(row["reward"] for row in mine),
        outcome=group.outcome if whole or group.outcome != "arrived" else "cancelled",
        version_min=min((row["version_min"] for row in mine), default=group.ticket.version),
        seqs=tuple(kept) if whole and group.outcome == "arrived" else (),
        dropped_by="" if kept or not mine else mine[0]["dropped_by"],
    )


def group_row(group: Played, result: GroupResult, named: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the `groups` table for one closed ticket."""
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


def stored_groups(buffer: Buffer, run_id: str) -> list[GroupResult]:
    """The run's closed groups, in order of admission."""
    rows = buffer.read("groups", where=Compare("run_id", "eq", run_id)).to_pylist()
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


def unjudged(buffer: Buffer, run_id: str, least_members: int, tasks: Container[TaskKey]) -> list[Played]:
    """Groups whose rows a killed process had stored, and that are in no book yet.

    One with fewer than `least_members`, or whose task is gone, is `cancelled`: accounted for, never trained.
    """
    closed = set(buffer.read("groups", ["group_id"], Compare("run_id", "eq", run_id))["group_id"].to_pylist())
    mine = And((Compare("run_id", "eq", run_id), Compare("source", "eq", "rollout")))
    names = ["seq", "group_id", "taskset", "task_id", "member", "version_min"]
    members: dict[str, list[dict[str, Any]]] = {}
    for row in buffer.read("experiences", names, mine).to_pylist():
        # a group without an ordinal is none of the sampler's, and nobody's to judge
        if row["group_id"] not in closed and _OF_A_TICKET.search(row["group_id"]):
            members.setdefault(row["group_id"], []).append(row)
    return [_stored(group_id, rows, least_members, tasks) for group_id, rows in members.items()]


def _stored(
    group_id: str, rows: Sequence[Mapping[str, Any]], least_members: int, tasks: Container[TaskKey]
) -> Played:
    key = TaskKey(rows[0]["taskset"], rows[0]["task_id"])
    version = min(row["version_min"] for row in rows if row["version_min"] is not None)
    ticket = Ticket(group_id, int(group_id.rsplit("-", 1)[1]), version, _NO_ROUND)
    seqs = tuple(row["seq"] for row in rows)
    if key in tasks and len({row["member"] for row in rows}) >= least_members:
        return Played(ticket, key, "arrived", seqs, len(seqs))
    return Played(ticket, key, "cancelled", seqs, len(seqs), "its explorer ended before the group was whole")


def recover_groups(
    tasks: Container[TaskKey],
    least_members: int,
    pipeline: Pipeline,
    buffer: Buffer,
    run_id: str,
    attempt: int,
    awaiting: Waiting | None = None,
) -> list[GroupResult]:
    """Judge the groups whose rows a killed run had stored but not closed, but for those that are to wait."""
    found = unjudged(buffer, run_id, least_members, tasks)
    if awaiting is not None:
        found = awaiting.sift(found)
    if not found:
        return []
    rows = buffer.take([seq for group in found for seq in group.seqs])
    if awaiting is not None:
        rows = awaiting.with_rewards(rows)
    try:
        return judge(found, rows, pipeline, buffer, run_id, attempt)
    except ConflictError:
        closed = {result.ticket.group_id for result in stored_groups(buffer, run_id)}
        if closed.isdisjoint(group.ticket.group_id for group in found):
            raise
        # a call of the killed run was still on its way to the hub, and closed some of them: look again
        return recover_groups(tasks, least_members, pipeline, buffer, run_id, attempt, awaiting)
