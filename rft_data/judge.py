"""From stored rows to closed groups: operators judge, the verdicts are stored, then the groups.

The online loop does this for what it has just explored; a restarted run does it for what was stored
but not judged when it was killed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.codec import to_experiences
from rft_data.errors import ConflictError
from rft_data.protocols import Group, Pipeline
from rft_data.rows import Experience, GroupResult, Task, TaskKey, Ticket

_OF_A_TICKET = re.compile(r"-\d+$")


def judge(
    groups: Sequence[Group], rows: pa.Table, pipeline: Pipeline, buffer: Buffer, run_id: str, attempt: int
) -> list[GroupResult]:
    """Run the operators over the groups' stored rows and write verdicts and groups down."""
    annotations = pipeline.run(rows)
    buffer.annotate(annotations)
    results = group_results(groups, rows, annotations)
    named = {"run_id": run_id, "attempt": attempt}
    buffer.add_rows("groups", [group_row(g, r, named) for g, r in zip(groups, results, strict=True)])
    return results


def group_results(groups: Sequence[Group], rows: pa.Table, annotations: pa.Table) -> list[GroupResult]:
    """What became of each group, from its stored rows and their verdicts (same order as `rows`)."""
    names = ["seq", "group_id", "version_min"]
    verdicts = annotations.select(["verdict", "dropped_by"]).to_pylist()
    judged: dict[str, list[dict[str, Any]]] = {}
    for row, verdict in zip(rows.select(names).to_pylist(), verdicts, strict=True):
        judged.setdefault(row["group_id"], []).append({**row, **verdict})
    results = []
    for group in groups:
        mine = judged.get(group.ticket.group_id, [])
        whole = len(mine) == len(group.experiences)  # else the door refused some: a group is never torn
        kept = [row["seq"] for row in mine if row["verdict"] == "kept"]
        results.append(
            GroupResult(
                ticket=group.ticket,
                task=group.task.key,
                rewards=tuple(e.reward for e in group.experiences),
                outcome=group.outcome if whole or group.outcome != "arrived" else "cancelled",
                version_min=min((row["version_min"] for row in mine), default=group.ticket.version),
                seqs=tuple(kept) if whole and group.outcome == "arrived" else (),
                dropped_by="" if kept or not mine else mine[0]["dropped_by"],
            )
        )
    return results


def group_row(group: Group, result: GroupResult, named: Mapping[str, Any]) -> dict[str, Any]:
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
    rows = [row for row in buffer.read("groups").to_pylist() if row["run_id"] == run_id]
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


def recover_groups(
    tasks: Mapping[TaskKey, Task],
    group_size: int,
    pipeline: Pipeline,
    buffer: Buffer,
    run_id: str,
    attempt: int,
) -> int:
    """Judge the groups whose rows a killed run had stored but not closed; returns how many.

    A group that lacks members, or whose task is gone, is `cancelled`: accounted for, never trained.
    """
    closed = {result.ticket.group_id for result in stored_groups(buffer, run_id)}
    heads = buffer.read("experiences", ["seq", "source", "run_id", "group_id"]).to_pylist()
    seqs = [
        row["seq"]
        for row in heads
        if row["source"] == "rollout"
        and row["run_id"] == run_id
        and row["group_id"] not in closed
        and _OF_A_TICKET.search(
            row["group_id"]
        )  # else it is no group of the sampler's, and nobody's to judge
    ]
    if not seqs:
        return 0
    rows = buffer.take(seqs)
    members: dict[str, list[Experience]] = {}
    for experience in to_experiences(rows):
        members.setdefault(experience.group_id, []).append(experience)
    groups = [_stored_group(group_id, mine, tasks, group_size) for group_id, mine in members.items()]
    try:
        judge(groups, rows, pipeline, buffer, run_id, attempt)
    except ConflictError:
        late = {result.ticket.group_id for result in stored_groups(buffer, run_id)} - closed
        if not late:
            raise
        # a call of the killed run was still on its way to the hub, and closed some of them: look again
        return recover_groups(tasks, group_size, pipeline, buffer, run_id, attempt)
    return len(groups)


def _stored_group(
    group_id: str, rows: Sequence[Experience], tasks: Mapping[TaskKey, Task], group_size: int
) -> Group:
    key = TaskKey(rows[0].taskset, rows[0].task_id)
    version = min(row.version_min for row in rows if row.version_min is not None)
    ticket = Ticket(group_id, int(group_id.rsplit("-", 1)[1]), version)
    if key in tasks and {row.member for row in rows} == set(range(group_size)):
        return Group(ticket, tasks[key], tuple(rows), "arrived")
    task = tasks.get(key) or Task(key.taskset, ())
    return Group(ticket, task, tuple(rows), "cancelled", "the run was killed while the group was stored")
