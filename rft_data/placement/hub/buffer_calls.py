"""The calls of a hub about its buffer: a fixed list.

Arguments come from other processes: their types are checked before a call is made, tables and columns must be
in `schema.TABLES`, and filters are typed trees. `server.py` receives the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import ConfigDict, ValidationError, validate_call

from rft_data.buffer import Buffer
from rft_data.core.codec import to_preferences, to_table, to_tasks
from rft_data.core.errors import ConflictError, RecipeError, RowError, UnknownComponentError
from rft_data.core.filters import In, parse_filter
from rft_data.core.groups import Lease
from rft_data.core.lookup import suggest
from rft_data.core.named_tables import known_columns, table_schema
from rft_data.core.rows import Feedback
from rft_data.core.schema import ANNOTATIONS, EXPERIENCES, INCOMING, PREFERENCES, TABLES, TASKS
from rft_data.placement.hub import arrow_rows, wire
from rft_data.placement.hub.file_parts import PART
from rft_data.placement.hub.ledgers import Ledgers
from rft_data.placement.hub.readmission import Readmission
from rft_data.placement.hub.run_files import RunFiles
from rft_data.placement.hub.wire import AppendAnswer, Rows

ROW_TABLES = (
    "runs",
    "task_state",
    "groups",
    "versions",
    "metrics",
    "trained_tokens",
    "stage_rows",
    "tags",
    "quarantine",
)
"""Tables that `add_rows` may write; each other table has its own call, which checks more."""
BRINGING: Mapping[str, pa.Schema] = {
    "append": INCOMING,
    "annotate": ANNOTATIONS,
    "readmit": ANNOTATIONS,
    "add_tasks": pa.schema([field for field in TASKS if field.name != "created_at"]),
    "add_preferences": PREFERENCES,
    "write_file": PART,
}
"""The calls that bring rows, and their columns."""
GIVING = frozenset({"read", "tail", "take", "leased", "payload"})
"""The calls that give rows."""
_LISTS = ("rows", "feedback", "groups", "versions")
"""Arguments with rows as JSON."""
_PAYLOAD = ("media_type", "data")
_SHOWN = 20
_FIRST_ROWS, _MOST_ROWS = 8, 64
"""Rows that `take` reads at a time: only when they are read is it known how large they are."""


class Calls:
    """The calls of one hub, by name."""

    def __init__(self, buffer: Buffer, files: RunFiles | None = None) -> None:
        """`buffer`: the buffer that is served. `files`: those of a run, for its roles on other nodes."""
        self._buffer = buffer
        self._rows_lock = threading.Lock()
        self.ledgers = Ledgers(buffer)
        with_rows: dict[str, Callable[..., object]] = {
            "append": self.append,
            "annotate": self.annotate,
            "add_tasks": self.add_tasks,
            "add_preferences": self.add_preferences,
            "readmit": Readmission(buffer).readmit,
        }
        without_rows: dict[str, Callable[..., object]] = {
            "add_rows": self.add_rows,
            "add_feedback": self.add_feedback,
            "take": self.take,
            "read": self.read,
            "tail": self.tail,
            "leased": self.leased,
            "payload": self.payload,
            "counts": self.counts,
            "lost_rows": self.lost_rows,
            **self.ledgers.calls,
        }
        if files is not None:
            with_rows |= files.calls_with_rows
            without_rows |= files.calls
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))
        self._calls: dict[str, Callable[..., object]] = {
            name: checked(call) for name, call in {**with_rows, **without_rows}.items()
        }

    def answer(
        self, method: str, args: Mapping[str, object], sent: tuple[pa.Buffer, int] | None = None
    ) -> object:
        """Make a call and return its result.

        `sent`: the Arrow stream that came with it, and the number of its rows.
        Raises: UnknownComponentError if there is no call of this name, RowError if an argument has a wrong
            type, and whatever the call raises.
        """
        if method not in self._calls:
            raise UnknownComponentError(
                f"hub call '{method}' is not known;{suggest(method, self._calls)} "
                "the client may be newer than the hub: use one version of rft-data for both."
            )
        if (sent is not None) != (method in BRINGING):
            raise RowError(f"hub call '{method}' brings {'no ' if sent is not None else ''}rows.")
        for name in _LISTS:
            if isinstance(given := args.get(name), list):
                wire.check_request(len(given), 0)
        rows = {} if sent is None else {"table": arrow_rows.checked(sent[0], BRINGING[method], sent[1])}
        try:
            return self._calls[method](**args, **rows)
        except ValidationError as err:
            wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in err.errors(include_url=False)]
            text = "; ".join(wrong[:_SHOWN])
            raise RowError(f"hub call '{method}' has arguments that do not fit: {text}.") from err

    # --- writing -----------------------------------------------------------------------------------

    def append(self, table: pa.Table, deadline_s: float) -> AppendAnswer:
        """`Buffer.append`."""
        done = self._buffer.append(table, deadline_s=deadline_s)
        digests = done.rows.column("digest").to_pylist()
        return {
            "seqs": done.seqs,
            "digests": digests,
            "stored": done.stored,
            "quarantined": done.quarantined,
        }

    def annotate(self, table: pa.Table) -> None:
        """`Buffer.annotate`; sending it again changes nothing, since the newest verdict counts."""
        self._buffer.annotate(table)

    def add_tasks(self, table: pa.Table) -> int:
        """`Buffer.add_tasks`."""
        return self._buffer.add_tasks(to_tasks(table.append_column("created_at", pa.nulls(table.num_rows))))

    def add_preferences(self, table: pa.Table) -> int:
        """`Buffer.add_preferences`."""
        return self._buffer.add_preferences(to_preferences(table))

    def add_rows(self, name: str, rows: list[dict[str, object]]) -> None:
        """`Buffer.add_rows` for ROW_TABLES; a row whose key is stored already is not stored again.

        Raises: ConflictError if it is stored with other content.
        """
        if name not in ROW_TABLES:
            raise UnknownComponentError(
                f"a client may not add rows to table '{name}', only to {', '.join(ROW_TABLES)}; "
                "the other tables have calls of their own (append, annotate, add_tasks, the ledger's)."
            )
        if name == "tags":
            _check_tags(rows)
        key = TABLES[name][1]
        if key is None:
            self._buffer.add_rows(name, rows)
        else:
            with self._rows_lock:
                self._buffer.add_rows(name, self._not_stored(name, key, rows))

    def add_feedback(self, feedback: list[Feedback]) -> int:
        """`Buffer.add_feedback`; sending it again stores nothing new."""
        return self._buffer.add_feedback(feedback)

    def _not_stored(self, name: str, key: str, rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
        """The rows whose key is not stored yet."""
        schema, _ = TABLES[name]
        stored = self._buffer.read(name, None, In(key, tuple(str(row.get(key)) for row in rows)))
        known = {row[key]: row for row in stored.drop_columns(["created_at"]).to_pylist()}
        fresh = [row for row in rows if row.get(key) not in known]
        for row in rows:
            if row.get(key) in known and to_table([row], schema).to_pylist() != [known[row[key]]]:
                raise ConflictError(
                    f"table '{name}' has a row with {key} '{row[key]}' and other content already; a stored "
                    "row never changes: give the new one its own id."
                )
        return fresh

    # --- reading -----------------------------------------------------------------------------------

    def read(
        self,
        name: str,
        columns: list[str] | None = None,
        where: dict[str, object] | None = None,
        limit: int | None = None,
    ) -> Rows:
        """`Buffer.batches`."""
        schema = _schema(name, columns)
        chosen = None if where is None else parse_filter(where, TABLES[name][0])
        return Rows(schema, self._buffer.batches(name, schema.names, chosen, limit))

    def tail(self, name: str, n: int) -> Rows:
        """`Buffer.tail`, in batches."""
        schema, stored = _schema(name, None), self._buffer.counts()[name]
        return Rows(schema, self._buffer.batches(name, None, None, n, max(0, stored - n)))

    def take(self, seqs: list[int]) -> Rows:
        """`Buffer.take` of rows that are asked for once, at most `wire.MAX_REQUEST_ROWS`."""
        wire.check_request(len(seqs), 0)
        _check_distinct(seqs)
        return Rows(EXPERIENCES, self._take_parts(seqs))

    def _take_parts(self, seqs: Sequence[int]) -> Iterator[pa.RecordBatch]:
        start, step = 0, _FIRST_ROWS
        while start < len(seqs):
            part = self._buffer.take(seqs[start : start + step])
            start += step
            room = arrow_rows.BATCH_BYTES * part.num_rows // part.nbytes
            step = max(1, min(2 * step, room, _MOST_ROWS))
            yield from part.to_batches()
            del part  # before the next is read

    def leased(self, lease: Lease, pipeline_hash: str) -> Rows:
        """The rows of `Buffer.leased`, which are in memory at once."""
        _check_distinct(lease.seqs)
        table = self._buffer.leased(lease, pipeline_hash).table
        return Rows(table.schema, iter(table.to_batches()))

    def payload(self, payload_id: str) -> Rows:
        """`Buffer.payload`, as the one row that it is."""
        media_type, data = self._buffer.payload(payload_id)
        found = pa.table([[media_type], [data]], schema=_schema("payloads", _PAYLOAD))
        return Rows(found.schema, iter(found.to_batches()))

    def counts(self) -> dict[str, int]:
        """`Buffer.counts`."""
        return self._buffer.counts()

    def lost_rows(self) -> list[int]:
        """`Buffer.lost_rows`."""
        return sorted(self._buffer.lost_rows())


def _check_distinct(seqs: Sequence[int]) -> None:
    """Raises: RowError for a row number that is there twice: a short call would stand for a long answer."""
    if len(set(seqs)) < len(seqs):
        raise RowError(
            f"a hub call names {len(seqs)} rows, of which {len(set(seqs))} differ; name each row once."
        )


def _check_tags(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises: RowError for a tag whose filter could not be read later."""
    for row in rows:
        where = row.get("filter")
        try:
            if where is not None:
                parse_filter(where, EXPERIENCES)
        except RecipeError as err:
            raise RowError(f"tag {row.get('name')!r} has a filter that cannot be read: {err}") from err


def _schema(name: str, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of some columns of a table; None: of all.

    Raises: UnknownComponentError if there is no such table or column.
    """
    schema = table_schema(name)
    return (
        schema
        if columns is None
        else pa.schema([schema.field(column) for column in known_columns(name, columns)])
    )
