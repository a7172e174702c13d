"""A branch: a copy of some of a buffer's experiences, with all that belongs to them, in another buffer.

Not copied: runs, leases, consumption, stages and metrics, the accounting of the source's runs. So groups that
were trained on there may be trained on in the branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.codec import to_preferences, to_tasks
from rft_data.core.errors import IntegrityError, RecipeError
from rft_data.core.filters import In
from rft_data.core.rows import Feedback, TaskKey
from rft_data.core.schema import GROUPS, INCOMING, VERSIONS
from rft_data.reading.tags import View

_CHUNK = 512


class _Pair(TypedDict):
    """The columns of a preference pair that decide whether it is copied."""

    taskset: str
    task_id: str
    chosen_experience_id: str | None
    rejected_experience_id: str | None


@dataclass(frozen=True, slots=True)
class Branched:
    """Counts of the rows that one call of `branch` copied."""

    target: str
    experiences: int
    """Experiences of the view; all of them are in the target."""
    new: dict[str, int]
    """Rows that this call stored, by table; all 0 when the branch was complete before."""


def branch(source: Buffer, target: str | Path, view: View) -> Branched:
    """Copy a view's experiences with their tasks, payloads, annotations, groups, feedback and preferences.

    Every row's digest is checked. Experiences keep their ids and get new row numbers, in the same order;
    annotations and groups are renumbered with them. A group is copied if the view has every row of it that
    may be trained on; its run's versions come along, without their weights. Repeating the call (also after a
    kill) adds only the rows that are missing. Memory: about 200 bytes an experience, beside a few chunks.
    Raises: RecipeError if the target is the source; BusyError if it is owned by another process;
        IntegrityError if a row of the source is damaged; ConflictError if the target holds one of the ids
        with other content.
    """
    if "://" not in str(target) and str(Path(target).resolve()) == source.location:
        raise RecipeError(f"a branch of {target} cannot be the buffer itself; name another folder.")
    with Buffer(target) as opened:
        copy = _Copy(source, opened)
        for batch in view.batches(source):
            for start in range(0, batch.num_rows, _CHUNK):
                copy.experiences(_table(batch.slice(start, _CHUNK)))
        copy.annotations()
        copy.groups()
        copy.feedback()
        copy.preferences()
        return Branched(opened.location, len(copy.seqs), copy.new)


class _Copy:
    """One call of `branch`."""

    def __init__(self, source: Buffer, target: Buffer) -> None:
        self._source, self._target = source, target
        self.seqs: dict[int, int] = {}
        """Row number in the source to row number in the target."""
        self._ids: set[str] = set()
        self._group_ids: set[str] = set()
        self._task_keys: set[TaskKey] = set()
        self._tasks = {
            task.key: task for batch in source.batches("tasks") for task in to_tasks(_table(batch))
        }
        self._payloads = set(target.read("payloads", ["payload_id"]).column(0).to_pylist())
        names = ("experiences", "tasks", "payloads", "annotations", "groups", "feedback", "preferences")
        self.new = dict.fromkeys(names, 0)

    def experiences(self, rows: pa.Table) -> None:
        """Copy tasks and payloads, then the experiences, so that none is ever stored without them."""
        keys = zip(rows.column("taskset").to_pylist(), rows.column("task_id").to_pylist(), strict=True)
        self._copy_tasks({TaskKey(*key) for key in keys})
        for name in sorted(set(pc.list_flatten(rows.column("payloads")).to_pylist()) - self._payloads):
            media_type, data = self._source.payload(name)
            self._target.add_payload(data, media_type)
            self._payloads.add(name)
            self.new["payloads"] += 1
        done = self._target.append(rows.select(INCOMING.names))
        if done.quarantined:
            raise IntegrityError(
                f"{done.quarantined} experiences of {self._source.location} do not pass today's validation; "
                f"they are in the quarantine of {self._target.location} with the reason. Narrow the view."
            )
        self.new["experiences"] += done.stored
        numbers = [int(seq) for seq in done.seqs if seq is not None]
        self.seqs.update(zip(rows.column("seq").to_pylist(), numbers, strict=True))
        self._ids.update(rows.column("experience_id").to_pylist())
        self._group_ids.update(rows.column("group_id").to_pylist())

    def _copy_tasks(self, keys: set[TaskKey]) -> None:
        found = [self._tasks[key] for key in sorted(keys) if key in self._tasks]
        self.new["tasks"] += self._target.add_tasks(found)
        self._task_keys |= keys

    def annotations(self) -> None:
        """Copy the annotations of the copied rows, with their new row numbers, oldest first."""
        key = ["experience_id", "pipeline_hash", "created_at"]
        there = set(_tuples(self._target.read("annotations", key)))
        for batch in self._source.batches("annotations"):
            rows = _table(batch)
            seqs = [self.seqs.get(seq) for seq in rows.column("seq").to_pylist()]
            wanted = [
                seq is not None and name not in there
                for seq, name in zip(seqs, _tuples(rows.select(key)), strict=True)
            ]
            numbered = rows.set_column(0, rows.schema.field("seq"), pa.array(seqs, pa.int64()))
            fresh = numbered.filter(pa.array(wanted, pa.bool_()))
            if fresh.num_rows:
                self._target.annotate(fresh)
                self.new["annotations"] += fresh.num_rows

    def groups(self) -> None:
        """Copy the groups whose trainable rows were all copied, and the versions of their runs."""
        key = ["run_id", "group_id"]
        there = set(_tuples(self._target.read("groups", key)))
        runs: set[str] = set()
        for batch in self._source.batches("groups"):
            found = [self._renumbered(row) for row in _table(batch).to_pylist()]
            fresh = [row for row in found if row and tuple(row[name] for name in key) not in there]
            runs.update(row["run_id"] for row in fresh)
            if fresh:
                self._target.add_table("groups", pa.Table.from_pylist(fresh, GROUPS))
                self.new["groups"] += len(fresh)
        self._versions(runs)

    def _renumbered(self, group: dict[str, Any]) -> dict[str, Any] | None:
        """A group with the target's row numbers; None if the target lacks a row of it."""
        seqs = [self.seqs.get(seq) for seq in group["seqs"]]
        if None in seqs or (not seqs and group["group_id"] not in self._group_ids):
            return None
        return {**group, "seqs": seqs}

    def _versions(self, runs: set[str]) -> None:
        """How many optimizer steps were behind each version of these runs; the branch has no weights."""
        key = ["run_id", "version"]
        there = set(_tuples(self._target.read("versions", key)))
        fresh = [
            {**row, "path": "", "manifest_digest": ""}
            for row in self._source.read("versions", where=In("run_id", tuple(sorted(runs)))).to_pylist()
            if tuple(row[name] for name in key) not in there
        ]
        if fresh:
            self._target.add_table("versions", pa.Table.from_pylist(fresh, VERSIONS))

    def feedback(self) -> None:
        """Copy the feedback on the copied rows."""
        names = [field.name for field in fields(Feedback)]
        for batch in self._source.batches("feedback", names):
            rows = [Feedback(**row) for row in batch.to_pylist() if row["experience_id"] in self._ids]
            self.new["feedback"] += self._target.add_feedback(rows)

    def preferences(self) -> None:
        """Copy pairs of copied rows, and pairs that name no row if their task was copied."""
        for batch in self._source.batches("preferences"):
            mine = [self._is_mine(row) for row in batch.select(list(_Pair.__annotations__)).to_pylist()]
            pairs = to_preferences(_table(batch).filter(pa.array(mine, pa.bool_())))
            self._copy_tasks({TaskKey(pair.taskset, pair.task_id) for pair in pairs})
            self.new["preferences"] += self._target.add_preferences(pairs)

    def _is_mine(self, pair: _Pair) -> bool:
        named = (pair["chosen_experience_id"], pair["rejected_experience_id"])
        halves = {name for name in named if name is not None}
        if halves:
            return halves <= self._ids
        return TaskKey(pair["taskset"], pair["task_id"]) in self._task_keys


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _tuples(rows: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)
