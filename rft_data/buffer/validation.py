"""Validation of experiences before they are stored, column by column over a whole batch.

A bad row is refused with its reason; the other rows of its batch are stored. A table with other columns
than the schema is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer.column_checks import (
    Findings,
    check_identity,
    check_lists_and_times,
    check_reward,
    check_text,
    check_tokens,
)
from rft_data.core.codec import to_table
from rft_data.core.errors import RowError
from rft_data.core.rows import Experience
from rft_data.core.schema import INCOMING

_UNFIT = (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that may not be stored."""

    index: int
    """Place in the batch."""
    reason: str
    experience_id: str
    excerpt: dict[str, str]
    """Some fields of the row, as JSON values."""


def encode(rows: Sequence[Experience]) -> tuple[pa.Table, Sequence[int], list[Refused]]:
    """Rows as a table, the index of each of its rows in `rows`, and the rows that do not fit a table."""
    try:
        return to_table(rows, INCOMING), range(len(rows)), []
    except _UNFIT:
        good, refused = [], []
        for index, row in enumerate(rows):
            reason = _not_encodable(row)
            if reason is None:
                good.append(index)
            else:
                excerpt = {"task_id": ascii(row.task_id), "text": ascii(row.completion_text)[:4096]}
                refused.append(Refused(index, reason, ascii(row.experience_id)[1:-1], excerpt))
        return to_table([rows[i] for i in good], INCOMING), good, refused


def _not_encodable(row: Experience) -> str | None:
    try:
        to_table([row], INCOMING)
    except UnicodeEncodeError:
        return "text holds a lone surrogate, which is not valid Unicode"
    except _UNFIT as err:
        for field in INCOMING:
            try:
                to_table([{field.name: getattr(row, field.name)}], pa.schema([field]))
            except UnicodeEncodeError:
                return f"{field.name} holds a lone surrogate, which is not valid Unicode"
            except _UNFIT as inner:
                return f"{field.name} does not fit its column ({field.type}): {inner}"
        return f"row does not fit the schema: {err}"
    return None


def conform(table: pa.Table) -> pa.Table:
    """A caller's table with exactly the columns of INCOMING, in order.

    Raises: RowError naming every column that is missing, unknown or of another type.
    """
    if table.schema.equals(INCOMING):
        return table
    wrong = [f"column '{n}' is missing" for n in INCOMING.names if n not in table.column_names]
    names = table.column_names
    wrong += [f"column '{n}' occurs twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    wrong += [f"column '{n}' is not known" for n in table.column_names if n not in INCOMING.names]
    columns = []
    for field in INCOMING:
        if table.column_names.count(field.name) == 1:
            try:
                columns.append(_cast(table.column(field.name), field.type))
            except pa.ArrowException as err:
                wrong.append(
                    f"column '{field.name}' is {table.schema.field(field.name).type}, not {field.type}: {err}"
                )
    if wrong:
        raise RowError(
            f"the table is not a batch of experiences: {'; '.join(wrong)}. "
            "Wanted are the columns of schema.EXPERIENCES without seq and digest."
        )
    return pa.Table.from_arrays(columns, schema=INCOMING)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column as another type, without loss; lists are validated, since casts of views can be wrong."""
    if column.type == kind:
        return column
    cast = column.cast(kind)
    if pa.types.is_list(kind):
        cast.validate(full=True)
    return cast


def admit(table: pa.Table, *, parsed: bool) -> tuple[pa.Table, npt.NDArray[np.int64], list[Refused]]:
    """Split a conforming table into (valid rows, the index of each, refused rows).

    `parsed`: our own encoder wrote the JSON columns, so they are not checked again.
    """
    found = Findings()
    if table.num_rows:
        check_text(table, found, parsed=parsed)
        check_identity(table, found)
        check_tokens(table, found)
        check_lists_and_times(table, found)
        check_reward(table, found)
    reasons = found.reasons
    if not reasons:
        return table, np.arange(table.num_rows), []
    places = np.array([i for i in range(table.num_rows) if i not in reasons], np.int64)
    refused = [_refused(table, index, reasons[index]) for index in sorted(reasons)]
    return table.take(pa.array(places)), places, refused


def _refused(table: pa.Table, index: int, reason: str) -> Refused:
    row = table.slice(index, 1)

    def text(name: str) -> str:
        value = row.column(name).cast(pa.binary())[0].as_py()
        return "" if value is None else value[:4096].decode("utf-8", "backslashreplace")

    excerpt = {"task_id": text("task_id"), "group_id": text("group_id"), "text": text("completion_text")}
    return Refused(index, reason, text("experience_id"), excerpt)
