"""The buffer: append, annotate, lease rows, read. The process that opened it for writing is its only owner.

Rows are never updated. A verdict, a lease or feedback is appended to a table of its own; the newest row
counts. All methods may be called from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rft_data.buffer.appended import Appended
from rft_data.buffer.durability import Durability
from rft_data.buffer.experiences import Experiences
from rft_data.buffer.intake import Intake
from rft_data.buffer.leased_rows import LeasedRows
from rft_data.buffer.maintenance import compact, maintain, remove_orphans
from rft_data.buffer.parts import Part
from rft_data.buffer.small_tables import SmallTables
from rft_data.buffer.store import Store
from rft_data.buffer.verdicts import check_annotations
from rft_data.buffer.whole_rows import checked
from rft_data.core.codec import to_table, to_tasks
from rft_data.core.errors import RftError, RowError
from rft_data.core.filters import Filter
from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch
from rft_data.core.rows import Experience, Feedback, PreferencePair, Task, TaskKey, now
from rft_data.core.schema import EXPERIENCES, TABLES

if TYPE_CHECKING:
    import pandas as pd
    from lance import LanceDataset
    from lancedb.table import Table

DEADLINE_S, STORE_DEADLINE_S = 60.0, 360.0
"""Seconds that an append may take, in a folder and on an object store, where the owner tries for 5
minutes."""


class Buffer:
    """One LanceDB folder; this process is its only writer unless `read_only`."""

    def __init__(
        self, root: Path | str, *, read_only: bool = False, durability: Durability = "process"
    ) -> None:
        """Open or create the buffer at `root`, a folder or an object-store URL (`s3://bucket/prefix`).

        `durability`: an acknowledged row survives the death of every process (`process`), or that of the
        machine too (`power`: an fsync barrier for each commit).
        Raises: MissingFileError, BusyError or IntegrityError (see `LocalFolder` and `ObjectPrefix`);
            IntegrityError if row numbers have a gap.
        """
        self._store = Store(str(root), read_only=read_only, durability=durability)
        self.location = self._store.location
        """The folder or URL, as text."""
        try:
            self._experiences = Experiences(self._store)
        except BaseException:
            self._store.close()
            raise
        self._small_tables = SmallTables(self._store)
        self._leased_rows = LeasedRows(self._store, self._experiences)
        self._deadline_s = STORE_DEADLINE_S if "://" in self.location else DEADLINE_S
        self._intake = Intake(self._experiences)

    @property
    def read_only(self) -> bool:
        """Whether this process may only read."""
        return self._store.read_only

    @property
    def root(self) -> Path:
        """The folder.

        Raises: RftError for a buffer on an object store.
        """
        if self._store.local is None:
            raise RftError(f"{self.location} is on an object store; this needs a buffer in a local folder.")
        return self._store.local

    def close(self) -> None:
        """Store what was submitted, then give up ownership; idempotent."""
        self._intake.close()
        self._store.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing -----------------------------------------------------------------------------------

    def append(self, rows: Sequence[Experience] | pa.Table, *, deadline_s: float | None = None) -> Appended:
        """Store experiences; returns once they are as durable as the buffer's `durability` says.

        A row already stored is not stored again. A row that does not fit the schema goes to `quarantine`
        with the reason. Appends of many threads share commits.
        Raises: RowError if a table has other columns than EXPERIENCES (without seq and digest);
            ConflictError if an id is already stored with other content (no experience of this call is
            stored); DiskFullError; StalledError after `deadline_s` or DEADLINE_S (sending again is safe).
        """
        return self._intake.append(rows, deadline_s or self._deadline_s)

    def submit(
        self, rows: Sequence[Experience] | pa.Table, *, deadline_s: float | None = None
    ) -> Future[Appended]:
        """Like `append` without waiting: the future has what `append` would return or raise.

        Blocks, at most for `deadline_s`, while too many bytes wait to be stored. The rows are encoded later,
        together with those of other appends: do not change what they hold before the future is done.
        """
        return self._intake.submit(rows, deadline_s or self._deadline_s, urgent=False)

    def add_rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
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
        self.add_table(name, to_table(stamped, schema))

    def add_table(self, name: str, rows: pa.Table) -> None:
        """Append a table of one of the small tables' schemas in one commit.

        Raises: RowError for experiences and annotations, which have methods of their own.
        """
        if name in ("experiences", "annotations"):
            raise RowError(f"rows of '{name}' are not added with `add_table`; use `append` or `annotate`.")
        self._store.add(name, rows)
        maintain(self._store, name)

    def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Store tasks that are not stored yet; returns how many were new."""
        return self._small_tables.add_tasks(tasks)

    def add_preferences(self, pairs: Sequence[PreferencePair]) -> int:
        """Store preference pairs that are not stored yet; returns how many were new."""
        return self._small_tables.add_preferences(pairs)

    def add_feedback(self, feedback: Sequence[Feedback]) -> int:
        """Store feedback about experiences; returns how many were new.

        Raises: RowError if an experience is not stored, or a value is not finite.
        """
        return self._small_tables.add_feedback(feedback, self._experiences.stored_digests)

    def add_payload(self, data: bytes, media_type: str) -> str:
        """Store an image or other large value once; returns its id for `Experience.payloads`."""
        return self._small_tables.add_payload(data, media_type)

    def payload(self, payload_id: str) -> tuple[str, bytes]:
        """(media type, bytes) of a stored payload.

        Raises: IntegrityError if it is missing or its bytes do not match its id.
        """
        return self._small_tables.payload(payload_id)

    def annotate(self, annotations: pa.Table) -> None:
        """Store the verdicts of an operator pipeline in one commit; the newest verdict on a row counts.

        Raises: RowError if a row number is not stored, a verdict is not one of VERDICTS, or an advantage is
            not finite; then nothing is stored.
        """
        check_annotations(annotations, self._experiences.next_seq)
        self._leased_rows.annotate(annotations)
        maintain(self._store, "annotations")

    def build_index(self, name: str, act: Callable[[Table, LanceDataset], None]) -> None:
        """Let `act` change a table's indices, through LanceDB or Lance, while no other commit is made."""
        with self._store.locked(name):
            act(self._store.table(name), self._store.head(name))
            self._store.forget(name)  # an index is a commit too; the next commit builds on it

    def compact(self) -> dict[str, dict[str, int]]:
        """Merge small fragments of every table and remove files left behind by killed writes."""
        report = {}
        for name in TABLES:
            if self._store.count(name):
                report[name] = {
                    **compact(self._store, name, crowd=1),
                    "orphan_bytes": remove_orphans(self._store, name),
                }
        return report

    # --- reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._store.count("experiences")

    def counts(self) -> dict[str, int]:
        """Rows per table."""
        return {name: self._store.count(name) for name in TABLES}

    def read(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Rows of a table that match a filter, in the order written.

        Raises: IntegrityError, as `batches` and `tail` do, if a whole row does not match its digest or id.
        """
        return checked(self.location, name, columns, self._store.rows(name).scan(columns, where, limit))

    def to_pandas(
        self,
        name: str = "experiences",
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """The rows of `read` as a data frame: a list is a NumPy array, and NaN a number that is null."""
        return self.read(name, columns, where, limit).to_pandas()

    def batches(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Like `read`, in batches of at most 1,024 rows and about 8 MiB, so that memory is bounded.

        `offset`: how many rows that match are left out first.
        """
        for batch in self._store.rows(name).batches(columns, where, limit, offset):
            yield from checked(self.location, name, columns, pa.Table.from_batches([batch])).to_batches()

    def parts(self, name: str) -> Iterator[Part]:
        """Parts of the newest version of a table, oldest first."""
        return self._store.rows(name).parts()

    def tail(self, name: str, n: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The last n rows of a table, oldest first."""
        return checked(self.location, name, columns, self._store.rows(name).tail(n, columns))

    def lost_rows(self) -> set[int]:
        """Numbers of rows that a repair removed."""
        return {seq for first, last in self._experiences.lost() for seq in range(first, last + 1)}

    def lance(self, name: str) -> Any:
        """The LanceDB table, for searches; None when it does not exist yet."""
        return self._store.table(name)

    def tasks(self, split: str | None = None) -> list[Task]:
        """Stored tasks, all or those of one split."""
        tasks = to_tasks(self._store.rows("tasks").scan())
        return [task for task in tasks if split is None or task.split == split]

    def task_keys(self) -> list[TaskKey]:
        """Keys of all stored tasks."""
        return self._small_tables.task_keys()

    def take(self, seqs: Sequence[int]) -> pa.Table:
        """Experiences by row number, in the order asked (a repeated number gives a repeated row).

        Raises: IntegrityError if a row is missing or does not match its digest.
        """
        return self._experiences.take(seqs) if len(seqs) else EXPERIENCES.empty_table()

    def leased(self, lease: Lease, pipeline_hash: str) -> LeasedBatch:
        """The lease's rows joined with the pipeline's verdicts, in lease order.

        Columns: `seq`, those of `digests.TRAINED`, `member`, `turn`, `digest`, `advantage`, `masked` (never
        null) and `shaped_reward`; use `take` for the others.
        Raises: IntegrityError if the lease or a row does not match its digest, or a row was never kept.
        """
        return self._leased_rows.read(lease, pipeline_hash)
