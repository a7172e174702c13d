"""The `rft` format: rows of this package's own tables, every column, nothing decoded that need not be.

JSON columns are the stored text, so digests still hold: a row whose digest does not match is refused. The
bytes a row refers to travel with it, in the column `attachments`. Row numbers (`seq`) are given anew where
rows are imported, and so is the `created_at` of tasks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from rft_data.buffer.validation import Refused
from rft_data.core.codec import to_preferences, to_tasks
from rft_data.core.digests import row_digests
from rft_data.core.errors import RowError
from rft_data.core.rows import PreferencePair, Task, canonical_json
from rft_data.core.schema import EXPERIENCES, INCOMING, PREFERENCES, TASKS, is_json
from rft_data.exchange.formats.records import Format, Origin, Record, Row, StoredRow

ATTACHMENTS = pa.field(
    "attachments",
    pa.list_(
        pa.struct(
            [
                pa.field("payload_id", pa.string()),
                pa.field("media_type", pa.string()),
                pa.field("data", pa.large_binary()),
            ]
        )
    ),
)
_GIVEN_ANEW = frozenset({"seq", "digest", ATTACHMENTS.name})


def read_stored(row: Row, _: Origin) -> Sequence[Record]:
    """The stored row: a task, a preference pair, or an experience in its columns."""
    if "preference_id" in row:
        return [_preference(row)]
    if "experience_id" in row:
        columns = {name: value for name, value in row.items() if name not in _GIVEN_ANEW}
        return [
            StoredRow(_typed(columns, INCOMING), row.get("digest"), _attachments(row.get(ATTACHMENTS.name)))
        ]
    return [_task(row)]


def _preference(row: Row) -> PreferencePair:
    pair = to_preferences(_table(row, PREFERENCES))[0]
    if pair.preference_id != row["preference_id"]:
        raise RowError(f"preference_id {row['preference_id']!r} is not the hash of its content")
    return pair


def _task(row: Row) -> Task:
    task = to_tasks(_table(row, TASKS))[0]
    if task.task_id != row["task_id"]:
        raise RowError(f"task_id {row['task_id']!r} is not the hash of its content")
    return task


def _table(row: Row, schema: pa.Schema) -> pa.Table:
    typed = _typed(row, schema)
    nulls = [field.name for field in schema if typed[field.name] is None and not field.nullable]
    if nulls:
        raise RowError(f"null in {', '.join(nulls)}")
    try:
        return pa.Table.from_pylist([typed], schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as err:
        raise RowError(f"a value does not fit its column: {err}") from err


def _typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Exactly the schema's columns, times parsed and JSON columns as text.

    Raises: RowError naming the columns that are missing or not known.
    """
    missing = [name for name in schema.names if name not in row]
    unknown = [name for name in row if name not in schema.names]
    if missing or unknown:
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (("missing", missing), ("not known", unknown))
            if names
        ]
        raise RowError(f"columns {'; '.join(parts)}; this table has {', '.join(schema.names)}")
    return {field.name: _value(field, row[field.name]) for field in schema}


def _value(field: pa.Field, value: Any) -> Any:
    if value is None or (isinstance(value, str) and not pa.types.is_timestamp(field.type)):
        return value
    try:
        if is_json(field):
            return canonical_json(value)
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as err:
        raise RowError(f"{field.name} does not fit its column ({field.type}): {err}") from err


def _attachments(value: Any) -> list[tuple[str, str, bytes]]:
    try:
        return [(part["payload_id"], part["media_type"], _bytes(part["data"])) for part in value or []]
    except (KeyError, TypeError, binascii.Error) as err:
        raise RowError(f"attachments are not payload_id, media_type and base64 data: {err!r}") from err


def _bytes(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else base64.b64decode(data, validate=True)


def stored_table(rows: Sequence[StoredRow]) -> tuple[pa.Table, list[int], list[Refused]]:
    """Rows as a table, the place of each of its rows, and those that may not be stored."""
    refused: list[Refused] = []
    places: list[int] = []
    tables: list[pa.Table] = []
    try:
        tables, places = [_rows_table(rows)], list(range(len(rows)))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for place, row in enumerate(rows):
            try:
                tables.append(_rows_table([row]))
                places.append(place)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as err:
                refused.append(Refused(place, f"a value does not fit its column: {err}", _id(row), {}))
    table = pa.concat_tables([INCOMING.empty_table(), *tables]).combine_chunks()
    found = row_digests(table) if table.num_rows else []
    wrong = [i for i, digest in enumerate(found) if rows[places[i]].digest not in (None, digest)]
    for i in wrong:
        reason = f"digest is {rows[places[i]].digest} but its content has {found[i]}; the row was changed"
        refused.append(Refused(places[i], reason, _id(rows[places[i]]), {}))
    good = [i for i in range(len(places)) if i not in set(wrong)]
    return table.take(pa.array(good, pa.int64())), [places[i] for i in good], refused


def _rows_table(rows: Sequence[StoredRow]) -> pa.Table:
    table = pa.Table.from_pylist([dict(row.columns) for row in rows], schema=INCOMING)
    for field in INCOMING:
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"{field.name} is null")
    return table


def _id(row: StoredRow) -> str:
    return ascii(row.columns.get("experience_id"))[1:-1]


def stored_row(row: Row, fetch: Callable[[str], tuple[str, bytes]]) -> Row:
    """A row of an experiences table with the payloads it refers to beside it."""
    parts = [(name, *fetch(name)) for name in row.get("payloads") or []]
    if "experience_id" not in row:
        return row
    return {**row, ATTACHMENTS.name: [{"payload_id": n, "media_type": m, "data": d} for n, m, d in parts]}


STORED = Format(
    "rft",
    ("every column of a buffer's experiences, preferences or tasks",),
    (
        frozenset({"experience_id", "group_id", "messages", "prompt_messages", "taskset"}),
        frozenset({"preference_id", "chosen", "rejected", "messages", "taskset"}),
        frozenset({"taskset", "task_id", "messages", "split", "tags"}),
    ),
    read_stored,
    tables=("experiences", "preferences", "tasks"),
    schemas={"experiences": EXPERIENCES.append(ATTACHMENTS), "preferences": PREFERENCES, "tasks": TASKS},
)
