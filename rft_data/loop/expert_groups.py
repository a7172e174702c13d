"""Experts' answers as groups that a sampler can mix into a policy's batches.

Their rows are stored already. Here they get verdicts (kept, advantage 0) and rows in `groups`, under a run id
of their own. They are tokenised when they are leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare
from rft_data.core.groups import GroupResult, Played, Ticket
from rft_data.core.rows import TaskKey, now
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.words import GroupOutcome, RowSource, Verdict
from rft_data.exchange.standing import excluded
from rft_data.loop.closing import group_row, stored_groups
from rft_data.sampler.mixed_in import experts_run_id

_NO_VERSION = 0
"""Experts' groups have no age; samplers do not read it."""


class _ExpertRow(TypedDict):
    """The columns of an expert's row that are read here."""

    seq: int
    experience_id: str
    group_id: str
    taskset: str
    task_id: str
    reward: float | None


def open_expert_groups(buffer: Buffer, run_id: str, pipeline_hash: str, attempt: int) -> int:
    """Store the run's expert rows as groups that can be leased, one for each task.

    Returns: how many groups are new.
    """
    mine = And((Compare("run_id", "eq", run_id), Compare("source", "eq", RowSource.EXPERT)))
    columns = ["seq", "experience_id", "group_id", "taskset", "task_id", "reward"]
    known = {group.ticket.group_id for group in stored_groups(buffer, experts_run_id(run_id))}
    unwanted = excluded(buffer).rows
    members: dict[str, list[_ExpertRow]] = {}
    for row in buffer.read("experiences", columns, mine).sort_by("seq").to_pylist():
        if row["group_id"] not in known and row["experience_id"] not in unwanted:
            members.setdefault(row["group_id"], []).append(row)
    if not members:
        return 0
    buffer.annotate(_kept([row for rows in members.values() for row in rows], pipeline_hash))
    named = {"run_id": experts_run_id(run_id), "attempt": attempt}
    groups = [_group(place, rows) for place, rows in enumerate(members.values())]
    buffer.add_rows("groups", [group_row(played, result, named) for played, result in groups])
    return len(groups)


def _kept(rows: Sequence[_ExpertRow], pipeline_hash: str) -> pa.Table:
    """Annotations that keep every row, with an advantage of 0."""
    columns = {
        "seq": [row["seq"] for row in rows],
        "experience_id": [row["experience_id"] for row in rows],
        "pipeline_hash": [pipeline_hash] * len(rows),
        "verdict": [Verdict.KEPT] * len(rows),
        "dropped_by": [""] * len(rows),
        "reason": [""] * len(rows),
        "stats": ["{}"] * len(rows),
        "advantage": [[0.0]] * len(rows),
        "created_at": [now()] * len(rows),
    }
    nothing = {name: [None] * len(rows) for name in ANNOTATIONS.names if name not in columns}
    return pa.table(columns | nothing, schema=ANNOTATIONS)


def _group(ordinal: int, rows: Sequence[_ExpertRow]) -> tuple[Played, GroupResult]:
    ticket = Ticket(rows[0]["group_id"], ordinal, _NO_VERSION, ordinal)
    task = TaskKey(rows[0]["taskset"], rows[0]["task_id"])
    seqs = tuple(row["seq"] for row in rows)
    rewards = tuple(row["reward"] for row in rows)
    result = GroupResult(ticket, task, rewards, GroupOutcome.ARRIVED, _NO_VERSION, seqs)
    return Played(ticket, task, GroupOutcome.ARRIVED, seqs, len(seqs)), result
