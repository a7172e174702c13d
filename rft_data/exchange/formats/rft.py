"""The `rft` format: rows of this package's own tables with every column.

JSON columns keep the stored text, so that digests still hold: a row whose digest does not match is refused.
The payloads of a row are in its column `attachments`. An import gives rows new numbers (`seq`), and
tasks a new `created_at`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime

import pyarrow as pa

from rft_data.buffer.validation import Refused
from rft_data.core.canonical import canonical_json
from rft_data.core.codec import to_preferences, to_tasks
from rft_data.core.digests import row_digests
from rft_data.core.errors import RowError
from rft_data.core.rows import PreferencePair, Task
from rft_data.core.schema import EXPERIENCES, INCOMING, PREFERENCES, TASKS, is_json
from rft_data.exchange.formats.records import Format, Origin, RawRow, Record, StoredRow

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
_NOT_IMPORTED = frozenset({"seq", "digest", ATTACHMENTS.name})


def read_stored(row: RawRow, _: Origin) -> Sequence[Record]:
    """A task, a preference pair, or the columns of an experience."""
    if "preference_id" in row:
        return [_preference(row)]
    if "experience_id" in row:
        columns = {name: value for name, value in row.items() if name not in _NOT_IMPORTED}
        digest = row.get("digest")
        attachments = _attachments(row.get(ATTACHMENTS.name))
        return [StoredRow(_typed(columns, INCOMING), None if digest is None else str(digest), attachments)]
    return [_task(row)]


def _preference(row: RawRow) -> PreferencePair:
    pair = to_preferences(_table(row, PREFERENCES))[0]
    if pair.preference_id != row["preference_id"]:
        raise RowError(f"preference_id {row['preference_id']!r} is not the hash of its content")
    return pair


def _task(row: RawRow) -> Task:
    task = to_tasks(_table(row, TASKS))[0]
    if task.task_id != row["task_id"]:
        raise RowError(f"task_id {row['task_id']!r} is not the hash of its content")
    return task


def _table(row: RawRow, schema: pa.Schema) -> pa.Table:
    typed = _typed(row, schema)
    nulls = [field.name for field in schema if typed[field.name] is None and not field.nullable]
    if nulls:
        raise RowError(f"null in {', '.join(nulls)}")
    try:
        return pa.Table.from_pylist([typed], schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as err:
        raise RowError(f"a value does not fit its column: {err}") from err


def _typed(row: RawRow, schema: pa.Schema) -> RawRow:
    """The schema's columns, with times parsed and JSON columns as text.

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


def _value(field: pa.Field, value: object) -> object:
    if value is None or (isinstance(value, str) and not pa.types.is_timestamp(field.type)):
        return value
    try:
        if is_json(field):
            return canonical_json(value)
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as err:
        raise RowError(f"{field.name} does not fit its column ({field.type}): {err}") from err


def _attachments(value: object) -> list[tuple[str, str, bytes]]:
    if not value:
        return []
    if not isinstance(value, list):
        raise RowError(f"attachments hold {type(value).__name__}; a list is needed")
    try:
        return [(part["payload_id"], part["media_type"], _bytes(part["data"])) for part in value]
    except (KeyError, TypeError, binascii.Error) as err:
        raise RowError(f"attachments are not payload_id, media_type and base64 data: {err!r}") from err


def _bytes(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else base64.b64decode(data, validate=True)


def stored_table(rows: Sequence[StoredRow]) -> tuple[pa.Table, Sequence[int], list[Refused]]:
    """(rows as a table, the place in `rows` of each row of the table, rows that are refused)."""
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


def with_attachments(row: RawRow, fetch: Callable[[str], tuple[str, bytes]]) -> RawRow:
    """A row of the table `experiences` with its payloads as attachments; a row of another table as it is."""
    if "experience_id" not in row:
        return row
    names = row.get("payloads")
    attachments = [_attachment(name, *fetch(name)) for name in (names if isinstance(names, list) else [])]
    return {**row, ATTACHMENTS.name: attachments}


def _attachment(payload_id: str, media_type: str, data: bytes) -> RawRow:
    return {"payload_id": payload_id, "media_type": media_type, "data": data}


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
