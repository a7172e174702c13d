"""A buffer in another process: the methods of `Buffer` that explorers, operators and trainers need.

It has no state. After a restart of the hub it finds the hub again, and repeats the calls without an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from rft_data.buffer import Appended
from rft_data.buffer.appended import in_places
from rft_data.buffer.row_numbers import ascending
from rft_data.buffer.validation import Refused, conform, encode
from rft_data.core.codec import to_table, to_tasks
from rft_data.core.errors import StalledError
from rft_data.core.filters import Filter, to_json
from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch
from rft_data.core.rows import Experience, Feedback, PreferencePair, Task
from rft_data.core.schema import EXPERIENCES, PREFERENCES, TASKS
from rft_data.placement.hub import wire
from rft_data.placement.hub.connection import Connection, Locate
from rft_data.placement.hub.remote_ledger import RemoteLedger
from rft_data.placement.hub.wire import AppendAnswer

HUB_TOKEN = "RFT_HUB_TOKEN"  # noqa: S105 - its name, not the token
"""Environment variable with the token of a hub, for commands that connect to one."""
DEADLINE_S = 150.0
"""Longer than a network may be cut (60 s) with the time until that is noticed."""
STREAM_DEADLINE_S = 600.0
"""Seconds for all batches of an answer; the hub keeps the files of an old version for longer than this."""
PIPELINED = 32
"""Appends of one client without an answer at a time."""


class HubClient:
    """A client of one hub; safe to use from many threads."""

    def __init__(self, address: str, token: str, *, locate: Locate | None = None) -> None:
        """Prepare; the connection is made by the first call.

        `locate`: finds a hub that may move (see `actor.connect`).
        """
        self.connection = Connection(address, token, locate)
        self._pool = ThreadPoolExecutor(PIPELINED, "hub-client")
        self._slots = threading.BoundedSemaphore(PIPELINED)

    def close(self) -> None:
        """Wait for the appends that have no answer yet, then close the connection; idempotent."""
        self._pool.shutdown()
        self.connection.close()

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ledger(self, run_id: str, attempt: int, *, max_uses: int = 1) -> RemoteLedger:
        """The hub's ledger of a run."""
        return RemoteLedger(self.connection, run_id, attempt, max_uses=max_uses)

    # --- writing -----------------------------------------------------------------------------------

    def append(self, rows: Sequence[Experience] | pa.Table, *, deadline_s: float = DEADLINE_S) -> Appended:
        """`Buffer.append`: returns when the rows are as durable as in the hub's buffer.

        Raises: as there; StalledError too if the hub cannot be reached for `deadline_s`; RowError for more
            than `wire.MAX_REQUEST_ROWS` or `wire.MAX_REQUEST_BYTES`.
        """
        return self._append(*self._encoded(rows, deadline_s), deadline_s)

    def submit(
        self, rows: Sequence[Experience] | pa.Table, *, deadline_s: float = DEADLINE_S
    ) -> Future[Appended]:
        """Append without waiting for the answer: up to PIPELINED appends run, and may be stored in any order.

        Blocks while that many run. Raises: StalledError after `deadline_s`; then nothing is stored.
        """
        end = time.monotonic() + deadline_s
        encoded = self._encoded(rows, deadline_s)
        if not self._slots.acquire(timeout=deadline_s):
            raise StalledError(
                f"{PIPELINED} appends of this client were under way for {deadline_s:g} s; nothing of this "
                "one is stored. Wait for their futures, or longer (deadline_s): sending it again is safe."
            )
        future = self._pool.submit(self._append, *encoded, max(0.0, end - time.monotonic()))
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def _encoded(
        self, rows: Sequence[Experience] | pa.Table, deadline_s: float
    ) -> tuple[pa.Table, Sequence[int], int]:
        """(table, place in `rows` of each of its rows, number of `rows`); quarantines what fits no table."""
        if isinstance(rows, pa.Table):
            return conform(rows), range(len(rows)), len(rows)
        table, places, refused = encode(rows)
        if refused:
            self.add_rows("quarantine", [_quarantine_row(row) for row in refused], deadline_s=deadline_s)
        return table, places, len(rows)

    def _append(self, table: pa.Table, places: Sequence[int], sent: int, deadline_s: float) -> Appended:
        if table.num_rows == 0:
            answer: AppendAnswer = {"seqs": [], "digests": [], "stored": 0, "quarantined": 0}
        else:
            answer = self.connection.call("append", {"deadline_s": deadline_s}, table, deadline_s=deadline_s)
        return _appended(table, places, sent, answer)

    def annotate(self, annotations: pa.Table, *, deadline_s: float = DEADLINE_S) -> None:
        """`Buffer.annotate`."""
        self.connection.call("annotate", {}, annotations, deadline_s=deadline_s)

    def add_rows(
        self, name: str, rows: Sequence[Mapping[str, object]], *, deadline_s: float = DEADLINE_S
    ) -> None:
        """`Buffer.add_rows`, for the tables in `buffer_calls.ROW_TABLES`; the hub sets `created_at`.

        A row of a table without a key may be stored twice if the hub dies during the call: the newest counts.
        Raises: as there; UnknownComponentError for another table; ConflictError if a key is stored with
            other content.
        """
        if rows:
            self.connection.call("add_rows", {"name": name, "rows": list(rows)}, deadline_s=deadline_s)

    def add_tasks(self, tasks: Sequence[Task], *, deadline_s: float = DEADLINE_S) -> int:
        """`Buffer.add_tasks`."""
        if not tasks:
            return 0
        return int(self.connection.call("add_tasks", {}, to_table(tasks, TASKS), deadline_s=deadline_s))

    def add_preferences(self, pairs: Sequence[PreferencePair], *, deadline_s: float = DEADLINE_S) -> int:
        """`Buffer.add_preferences`."""
        if not pairs:
            return 0
        table = to_table(pairs, PREFERENCES)
        return int(self.connection.call("add_preferences", {}, table, deadline_s=deadline_s))

    def add_feedback(self, feedback: Sequence[Feedback], *, deadline_s: float = DEADLINE_S) -> int:
        """`Buffer.add_feedback`, all of it or none; a run that waits for it continues within a second.

        Raises: as there; RowError for more than 16 MiB in one call.
        """
        if not feedback:
            return 0
        return int(self.connection.call("add_feedback", {"feedback": list(feedback)}, deadline_s=deadline_s))

    def readmit(
        self,
        new_run: str,
        groups: Sequence[Mapping[str, object]],
        versions: Sequence[Mapping[str, object]],
        annotations: pa.Table,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> int:
        """Store rejected groups that were judged again, under run id `new_run`; returns how many are new.

        Raises: RowError for groups that no run rejected, and for verdicts about other rows.
        """
        args = {"new_run": new_run, "groups": list(groups), "versions": list(versions)}
        return int(self.connection.call("readmit", args, annotations, deadline_s=deadline_s))

    # --- reading -----------------------------------------------------------------------------------

    def take(self, seqs: Sequence[int], *, deadline_s: float = DEADLINE_S) -> pa.Table:
        """`Buffer.take`; a row that is asked for twice crosses once."""
        wanted, order = ascending(seqs)
        numbers = wanted.tolist()
        found = [EXPERIENCES.empty_table()]
        for start in range(0, len(numbers), wire.MAX_REQUEST_ROWS):
            args = {"seqs": numbers[start : start + wire.MAX_REQUEST_ROWS]}
            found.append(self.connection.rows("take", args, deadline_s=deadline_s))
        rows = pa.concat_tables(found)
        return rows if order is None else rows.take(pa.array(order))

    def read(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> pa.Table:
        """`Buffer.read`."""
        return self.connection.rows(
            "read", _read_arguments(name, columns, where, limit), deadline_s=deadline_s
        )

    def batches(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Filter | None = None,
        *,
        deadline_s: float = STREAM_DEADLINE_S,
    ) -> Iterator[pa.RecordBatch]:
        """`Buffer.batches`; `deadline_s` is for all batches, and for the time between them."""
        args = _read_arguments(name, columns, where, None)
        for batch in self.connection.stream("read", args, deadline_s=deadline_s):
            if batch.num_rows:
                yield batch

    def tail(
        self, name: str, n: int, columns: Sequence[str] | None = None, *, deadline_s: float = DEADLINE_S
    ) -> pa.Table:
        """`Buffer.tail`."""
        found = self.connection.rows("tail", {"name": name, "n": n}, deadline_s=deadline_s)
        return found if columns is None else found.select(columns)

    def leased(self, lease: Lease, pipeline_hash: str, *, deadline_s: float = DEADLINE_S) -> LeasedBatch:
        """`Buffer.leased`."""
        args = {"lease": lease, "pipeline_hash": pipeline_hash}
        return LeasedBatch(lease, self.connection.rows("leased", args, deadline_s=deadline_s))

    def payload(self, payload_id: str, *, deadline_s: float = DEADLINE_S) -> tuple[str, bytes]:
        """`Buffer.payload`."""
        [row] = self.connection.rows("payload", {"payload_id": payload_id}, deadline_s=deadline_s).to_pylist()
        return row["media_type"], row["data"]

    def tasks(self, split: str | None = None, *, deadline_s: float = DEADLINE_S) -> list[Task]:
        """`Buffer.tasks`."""
        tasks = to_tasks(self.read("tasks", deadline_s=deadline_s))
        return [task for task in tasks if split is None or task.split == split]

    def __len__(self) -> int:
        """Experiences stored."""
        return self.counts()["experiences"]

    def counts(self, *, deadline_s: float = DEADLINE_S) -> dict[str, int]:
        """`Buffer.counts`."""
        return dict(self.connection.call("counts", {}, deadline_s=deadline_s))

    def lost_rows(self, *, deadline_s: float = DEADLINE_S) -> set[int]:
        """`Buffer.lost_rows`."""
        return set(self.connection.call("lost_rows", {}, deadline_s=deadline_s))


def _read_arguments(
    name: str, columns: Sequence[str] | None, where: Filter | None, limit: int | None
) -> dict[str, object]:
    chosen = None if columns is None else list(columns)
    return {
        "name": name,
        "columns": chosen,
        "where": None if where is None else to_json(where),
        "limit": limit,
    }


def _quarantine_row(row: Refused) -> dict[str, object]:
    return {"experience_id": row.experience_id, "reason": row.reason, "row": row.excerpt}


def _appended(table: pa.Table, places: Sequence[int], sent: int, answer: AppendAnswer) -> Appended:
    """The result of an append, from the hub's answer about the rows of `table`."""
    found = answer["seqs"]
    accepted = [seq is not None for seq in found]
    good = table if all(accepted) else table.filter(pa.array(accepted))
    numbers = pa.array([seq for seq in found if seq is not None], pa.int64())
    rows = good.append_column(EXPERIENCES.field("seq"), numbers).append_column(
        EXPERIENCES.field("digest"), pa.array(answer["digests"], pa.string())
    )
    quarantined = answer["quarantined"] + sent - len(places)
    seqs = in_places(found, places, sent)
    return Appended(seqs, answer["stored"], quarantined, rows, 0)
