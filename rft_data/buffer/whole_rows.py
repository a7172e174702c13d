"""Rows that leave the buffer whole are compared with the hash that they carry. Single columns cannot be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from rft_data.core.codec import to_preferences, to_tasks
from rft_data.core.digests import UNDIGESTED, mismatches
from rft_data.core.errors import IntegrityError
from rft_data.core.schema import EXPERIENCES, PREFERENCES, TASKS


def task_ids(rows: pa.Table) -> list[str]:
    """The ids that stored tasks should have."""
    return [task.task_id for task in to_tasks(rows)]


def preference_ids(rows: pa.Table) -> list[str]:
    """The ids that stored pairs should have."""
    return [pair.preference_id for pair in to_preferences(rows)]


_IDS: Mapping[str, tuple[str, pa.Schema, Callable[[pa.Table], Sequence[str]]]] = {
    "tasks": ("task_id", TASKS, task_ids),
    "preferences": ("preference_id", PREFERENCES, preference_ids),
}
"""Tables whose id is a hash of the row: the id's column, all columns, and the ids computed again."""
_EXPERIENCE = {name for name in EXPERIENCES.names if name not in UNDIGESTED} | {"seq", "digest"}


def is_whole(name: str, columns: Collection[str] | None) -> bool:
    """Whether these columns of a table are enough to check its rows; None stands for all columns."""
    if name == "experiences":
        return columns is None or set(columns) >= _EXPERIENCE
    return name in _IDS and (columns is None or set(_IDS[name][1].names) <= set(columns))


def checked(location: str, name: str, columns: Collection[str] | None, rows: pa.Table) -> pa.Table:
    """The rows, compared with their digest or id if these columns of theirs are enough for that.

    Raises: IntegrityError naming the first row that differs.
    """
    if not is_whole(name, columns):
        return rows
    if name == "experiences":
        check_digests(location, rows)
        return rows
    key, schema, computed = _IDS[name]
    for stored, actual in zip(rows.column(key).to_pylist(), computed(rows.select(schema.names)), strict=True):
        if stored != actual:
            raise IntegrityError(
                f"row '{stored}' of table '{name}' of buffer {location} does not match its id (computed "
                f"{actual}): the file is damaged. List the damage: rft buffer verify {location}"
            )
    return rows


def check_digests(location: str, rows: pa.Table, *, trained_only: bool = False) -> None:
    """Compare experiences with their digest; `trained_only`: with the half of it that covers TRAINED.

    Raises: IntegrityError naming the first row that differs.
    """
    for place, actual in mismatches(rows, trained_only=trained_only):
        name = f" ('{rows['experience_id'][place]}')" if "experience_id" in rows.column_names else ""
        raise IntegrityError(
            f"experience row {rows['seq'][place]}{name} of buffer {location} does not match its digest "
            f"(stored {rows['digest'][place]}, computed {actual}): the file is damaged; nothing was trained "
            f"on it. List the damage: rft buffer verify {location}"
        )
