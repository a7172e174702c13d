"""What a hub answers about its buffer: a fixed list of calls.

Arguments come from outside: their types are checked before a call is made, tables and columns are named
from `schema.TABLES`, filters are typed trees. How calls travel is `server.py`'s business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import ConfigDict, ValidationError, validate_call

from rft_data.buffer import Buffer
from rft_data.core.codec import to_table, to_tasks
from rft_data.core.errors import ConflictError, RowError, UnknownComponentError
from rft_data.core.filters import In, parse_filter
from rft_data.core.lookup import suggest
from rft_data.core.rows import Feedback, Lease
from rft_data.core.schema import EXPERIENCES, TABLES, TASKS
from rft_data.placement.hub.ledgers import Books
from rft_data.placement.hub.wire import Rows

ROW_TABLES = ("runs", "task_state", "groups", "versions", "metrics", "tags", "quarantine")
"""Tables that `add_rows` may write; the others have a call of their own, which checks more."""
_TAKEN_TOGETHER = 1024
"""Rows read at a time for one answer."""


class Calls:
    """The calls by name."""

    def __init__(self, buffer: Buffer) -> None:
        """Answer for `buffer`."""
        self._buffer = buffer
        self._rows_lock = threading.Lock()
        self.books = Books(buffer)
        bringing: dict[str, Callable[..., Any]] = {
            "append": self.append,
            "annotate": self.annotate,
            "add_tasks": self.add_tasks,
        }
        asking: dict[str, Callable[..., Any]] = {
            "add_rows": self.add_rows,
            "add_feedback": self.add_feedback,
            "take": self.take,
            "read": self.read,
            "tail": self.tail,
            "leased": self.leased,
            "counts": self.counts,
            "lost_rows": self.lost_rows,
            **self.books.calls,
        }
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))
        self._calls: dict[str, Callable[..., Any]] = {
            name: checked(call) for name, call in {**bringing, **asking}.items()
        }
        self._bringing = frozenset(bringing)

    def brings_rows(self, method: str) -> bool:
        """Whether a call comes with rows."""
        return method in self._bringing

    def answer(self, method: str, args: Mapping[str, Any], table: pa.Table | None = None) -> Any:
        """Make a call.

        Raises: UnknownComponentError if there is none of this name, RowError if its arguments do not fit,
            and whatever the call raises.
        """
        if method not in self._calls:
            raise UnknownComponentError(
                f"hub call '{method}' is not known;{suggest(method, self._calls)} "
                "the client may be newer than the hub: use one version of rft-data for both."
            )
        brought = {} if table is None else {"table": table}
        try:
            return self._calls[method](**args, **brought)
        except ValidationError as err:
            wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in err.errors(include_url=False)]
            raise RowError(f"hub call '{method}' has arguments that do not fit: {'; '.join(wrong)}.") from err

    # --- writing -----------------------------------------------------------------------------------

    def append(self, table: pa.Table, deadline_s: float) -> dict[str, Any]:
        """`Buffer.append`; digests are those of the rows let in."""
        done = self._buffer.append(table, deadline_s=deadline_s)
        digests = done.rows.column("digest").to_pylist()
        return {
            "seqs": done.seqs,
            "digests": digests,
            "stored": done.stored,
            "quarantined": done.quarantined,
        }

    def annotate(self, table: pa.Table) -> None:
        """`Buffer.annotate`; sent again it changes nothing, since the newest verdict counts."""
        schema, _ = TABLES["annotations"]
        if table.schema != schema:
            raise RowError(
                f"annotations have columns {table.schema.names}; wanted are exactly those and the types of "
                f"schema.ANNOTATIONS: {schema.names}."
            )
        self._buffer.annotate(table)

    def add_tasks(self, table: pa.Table) -> int:
        """`Buffer.add_tasks`."""
        wanted = [name for name in TASKS.names if name != "created_at"]
        if table.column_names != wanted:
            raise RowError(f"tasks have columns {table.column_names}; wanted are {wanted}.")
        return self._buffer.add_tasks(to_tasks(table.append_column("created_at", pa.nulls(table.num_rows))))

    def add_rows(self, name: str, rows: list[dict[str, Any]]) -> None:
        """`Buffer.add_rows` for ROW_TABLES; a row whose key is stored already is not stored again.

        Raises: ConflictError if it came with other content.
        """
        if name not in ROW_TABLES:
            raise UnknownComponentError(
                f"a client may not add rows to table '{name}', only to {', '.join(ROW_TABLES)}; "
                "the other tables have calls of their own (append, annotate, add_tasks, the ledger's)."
            )
        key = TABLES[name][1]
        if key is None:
            self._buffer.add_rows(name, rows)
        else:
            with self._rows_lock:
                self._buffer.add_rows(name, self._not_stored(name, key, rows))

    def add_feedback(self, feedback: list[Feedback]) -> int:
        """`Buffer.add_feedback`; sent again it is not new."""
        return self._buffer.add_feedback(feedback)

    def _not_stored(self, name: str, key: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the rows whose key is not stored yet."""
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
        where: dict[str, Any] | None = None,
        limit: int | None = None,
    ) -> Rows:
        """`Buffer.batches`, or `Buffer.read` where there is a limit."""
        schema = _shape(name, columns)
        chosen = None if where is None else parse_filter(where, TABLES[name][0])
        if limit is None:
            return Rows(schema, self._buffer.batches(name, schema.names, chosen))
        return Rows(schema, iter(self._buffer.read(name, schema.names, chosen, limit).to_batches()))

    def tail(self, name: str, n: int) -> Rows:
        """`Buffer.tail`."""
        return Rows(_shape(name, None), iter(self._buffer.tail(name, n).to_batches()))

    def take(self, seqs: list[int]) -> Rows:
        """`Buffer.take`."""
        return Rows(EXPERIENCES, self._taken(seqs))

    def _taken(self, seqs: Sequence[int]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(seqs), _TAKEN_TOGETHER):
            yield from self._buffer.take(seqs[start : start + _TAKEN_TOGETHER]).to_batches()

    def leased(self, lease: Lease, pipeline_hash: str) -> Rows:
        """`Buffer.leased`, the rows of it."""
        table = self._buffer.leased(lease, pipeline_hash).table
        return Rows(table.schema, iter(table.to_batches()))

    def counts(self) -> dict[str, int]:
        """`Buffer.counts`."""
        return self._buffer.counts()

    def lost_rows(self) -> list[int]:
        """`Buffer.lost_rows`."""
        return sorted(self._buffer.lost_rows())


def _shape(name: str, columns: Sequence[str] | None) -> pa.Schema:
    """Schema of columns of a table.

    Raises: UnknownComponentError if there is no such table or column.
    """
    if name not in TABLES:
        raise UnknownComponentError(
            f"table '{name}' is not known;{suggest(name, TABLES)} there are {', '.join(sorted(TABLES))}."
        )
    schema, _ = TABLES[name]
    for column in columns or ():
        if column not in schema.names:
            raise UnknownComponentError(
                f"table '{name}' has no column '{column}';{suggest(column, schema.names)} "
                f"it has {', '.join(schema.names)}."
            )
    return schema if columns is None else pa.schema([schema.field(column) for column in columns])
