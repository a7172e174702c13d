"""The buffer's one durable owner: append, annotate, lease rows, read.

Rows are never updated. What changes later (a verdict, a lease) is appended to its own small table
and folded in memory, newest wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rft_data.buffer.door import admit
from rft_data.buffer.store import Store
from rft_data.digests import row_digests
from rft_data.errors import ConflictError, IntegrityError, RowError
from rft_data.protocols import LeasedBatch
from rft_data.rows import Experience, Lease, Task, TaskKey, content_id, now
from rft_data.schema import EXPERIENCES, TABLES, to_table, to_tasks


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of the rows of one append."""

    seqs: tuple[int | None, ...]
    """Row number of each input row, in order; None where it was quarantined."""
    stored: int
    """Rows new in the table (a row that was already there is not stored again)."""
    quarantined: int


class Buffer:
    """One LanceDB folder; this process is its only writer unless `read_only`."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        """Open or create the buffer at `root`.

        Raises: MissingFileError, BusyError or IntegrityError (see `Store`); IntegrityError if row
            numbers have a gap.
        """
        self._store = Store(root, read_only=read_only)
        self.root = root
        self._known: dict[str, tuple[int, str]] = {}
        self._advantages: dict[str, dict[int, Any]] = {}
        if not read_only:
            self._load_known()

    def _load_known(self) -> None:
        rows = self._store.scan("experiences", ["seq", "experience_id", "digest"])
        seqs = rows.column("seq").to_pylist()
        if seqs != list(range(len(seqs))):
            raise IntegrityError(
                f"buffer {self.root}: experience row numbers are not dense (found {len(seqs)} rows, last "
                f"number {max(seqs)}); rows were removed or the folder is damaged: restore it from a copy."
            )
        ids, digests = rows.column("experience_id").to_pylist(), rows.column("digest").to_pylist()
        self._known = {i: (seq, digest) for seq, i, digest in zip(seqs, ids, digests, strict=True)}

    def close(self) -> None:
        """Give up ownership; idempotent. Everything acknowledged is already stored."""
        self._store.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing -----------------------------------------------------------------------------------

    def append(self, rows: Sequence[Experience]) -> Appended:
        """Store experiences in one commit; returns when they survive a kill of this process.

        A row already stored is not stored again. A row that does not fit goes to `quarantine` with
        its reason.
        Raises: ConflictError if an id is already stored with other content (no experience is stored).
        """
        good, refused = admit(rows)
        if refused:
            self._quarantine([(rows[index], reason) for index, reason in refused])
        seqs: list[int | None] = [None] * len(rows)
        table = to_table([rows[index] for index in good], EXPERIENCES) if good else None
        fresh: dict[str, tuple[int, str]] = {}
        fresh_at: list[int] = []
        if table is not None:
            for place, (index, digest) in enumerate(zip(good, row_digests(table), strict=True)):
                experience_id = rows[index].experience_id
                known = self._known.get(experience_id) or fresh.get(experience_id)
                if known is None:
                    known = fresh[experience_id] = (len(self._known) + len(fresh), digest)
                    fresh_at.append(place)
                elif known[1] != digest:
                    raise _conflict(experience_id, known[1], digest)
                seqs[index] = known[0]
            self._commit(table.take(pa.array(fresh_at, pa.int64())), list(fresh.values()))
            self._known.update(fresh)
        return Appended(tuple(seqs), stored=len(fresh), quarantined=len(refused))

    def _commit(self, table: pa.Table, numbered: Sequence[tuple[int, str]]) -> None:
        if not numbered:
            return
        seqs = pa.array([seq for seq, _ in numbered], pa.int64())
        digests = pa.array([digest for _, digest in numbered], pa.string())
        table = table.append_column(EXPERIENCES.field("seq"), seqs)
        self._store.add("experiences", table.append_column(EXPERIENCES.field("digest"), digests))

    def _quarantine(self, refused: Sequence[tuple[Experience, str]]) -> None:
        rows = [
            {
                "experience_id": row.experience_id,
                "reason": reason,
                "row": {
                    "task_id": row.task_id,
                    "group_id": row.group_id,
                    "text": ascii(row.completion_text)[:4096],
                },
                "created_at": now(),
            }
            for row, reason in refused
        ]
        self.add_rows("quarantine", rows)

    def add_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to one of the small tables in one commit; `created_at` is filled in.

        Raises: RowError if a row's columns are not exactly the table's.
        """
        if not rows:
            return
        schema, _ = TABLES[name]
        stamped = [{"created_at": now(), **row} for row in rows]
        wanted = set(schema.names)
        for row in stamped:
            if set(row) != wanted:
                raise RowError(
                    f"a row for table '{name}' has columns {sorted(set(row) ^ wanted)} missing or unknown; "
                    f"wanted exactly {schema.names}."
                )
        self._store.add(name, to_table(stamped, schema))

    def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Store tasks that are not stored yet; returns how many were new."""
        known = set(self.task_keys())
        fresh = {task.key: task for task in tasks if task.key not in known}
        names = ("taskset", "task_id", "messages", "answer", "split", "difficulty", "metadata")
        self.add_rows("tasks", [{name: getattr(task, name) for name in names} for task in fresh.values()])
        return len(fresh)

    def annotate(self, annotations: pa.Table) -> None:
        """Store what an operator pipeline decided, in one commit; the newest verdict on a row counts."""
        self._store.add("annotations", annotations)
        for pipeline_hash in set(annotations.column("pipeline_hash").to_pylist()):
            self._fold(pipeline_hash).update(_advantages(annotations, pipeline_hash))

    # --- reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._store.count("experiences")

    def counts(self) -> dict[str, int]:
        """Rows per table."""
        return {name: self._store.count(name) for name in TABLES}

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Every row of a table, in the order written."""
        return self._store.scan(name, columns)

    def tail(self, name: str, n: int) -> pa.Table:
        """The last n rows of a table, oldest first."""
        return self._store.tail(name, n)

    def tasks(self, split: str | None = None) -> list[Task]:
        """Stored tasks, all or those of one split."""
        tasks = to_tasks(self._store.scan("tasks"))
        return [task for task in tasks if split is None or task.split == split]

    def task_keys(self) -> list[TaskKey]:
        """Keys of all stored tasks."""
        rows = self._store.scan("tasks", ["taskset", "task_id"])
        return [TaskKey(row["taskset"], row["task_id"]) for row in rows.to_pylist()]

    def take(self, seqs: Sequence[int]) -> pa.Table:
        """Experiences by row number, in the order asked (a repeated number gives a repeated row).

        Raises: IntegrityError if a row is missing or does not match its digest.
        """
        if not seqs:
            return EXPERIENCES.empty_table()
        rows = self._store.take("experiences", seqs).select(EXPERIENCES.names)
        found = {seq: place for place, seq in enumerate(rows.column("seq").to_pylist())}
        missing = [seq for seq in seqs if seq not in found]
        if missing:
            raise IntegrityError(f"buffer {self.root} has no experience with row number {missing[0]}.")
        for seq, stored, actual in zip(
            found, rows.column("digest").to_pylist(), row_digests(rows), strict=True
        ):
            if stored != actual:
                raise IntegrityError(
                    f"experience row {seq} of buffer {self.root} does not match its digest "
                    f"(stored {stored}, computed {actual}): the file is damaged; nothing was trained on it."
                )
        return rows.take([found[seq] for seq in seqs])

    def leased(self, lease: Lease, pipeline_hash: str) -> LeasedBatch:
        """The lease's rows joined with the pipeline's `advantage`, in lease order.

        Raises: IntegrityError if the lease or a row does not match its digest, or a row was never kept.
        """
        if content_id(list(lease.seqs)) != lease.digest:
            raise IntegrityError(
                f"lease {lease.consumer}/{lease.step}: its row numbers do not match its digest."
            )
        advantages = self._fold(pipeline_hash)
        unjudged = [seq for seq in lease.seqs if advantages.get(seq) is None]
        if unjudged:
            raise IntegrityError(
                f"lease {lease.consumer}/{lease.step}: row {unjudged[0]} has no advantage from the pipeline; "
                "put an advantage operator at the end of 'experience_ops'."
            )
        column = pa.array([advantages[seq] for seq in lease.seqs], pa.list_(pa.float32()))
        return LeasedBatch(lease, self.take(lease.seqs).append_column("advantage", column))

    def _fold(self, pipeline_hash: str) -> dict[int, Any]:
        if pipeline_hash not in self._advantages:
            names = ["seq", "pipeline_hash", "verdict", "advantage"]
            self._advantages[pipeline_hash] = _advantages(
                self._store.scan("annotations", names), pipeline_hash
            )
        return self._advantages[pipeline_hash]


def _conflict(experience_id: str, stored: str, found: str) -> ConflictError:
    return ConflictError(
        f"experience '{experience_id}' is already stored with other content (digest {stored}, now {found}); "
        "an experience never changes: give the new rollout its own attempt or member number."
    )


def _advantages(annotations: pa.Table, pipeline_hash: str) -> dict[int, Any]:
    """Advantage by row number as one pipeline last judged it; None for a row it did not keep."""
    names = ["seq", "pipeline_hash", "verdict", "advantage"]
    return {
        row["seq"]: row["advantage"] if row["verdict"] == "kept" else None
        for row in annotations.select(names).to_pylist()
        if row["pipeline_hash"] == pipeline_hash
    }
