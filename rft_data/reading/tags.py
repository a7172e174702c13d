"""Views: fixed sets of experiences; and tags, their names.

Experiences never change and are numbered in the order stored, so `seq < N and <filter>` always names the same
rows, also after appends and compactions. A view copies no rows; `branch` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.codec import from_table
from rft_data.core.errors import ConflictError, RecipeError
from rft_data.core.filters import And, Compare, Filter, bind, parse_filter, to_json
from rft_data.core.lookup import suggest
from rft_data.core.schema import EXPERIENCES, TAGS


@dataclass(frozen=True, slots=True)
class View:
    """A fixed set of experiences."""

    rows: int | None = None
    """Only rows with seq below this; None: no bound, so the set grows with the buffer."""
    where: Filter | None = None
    """Only rows that this filter lets through; None: all."""

    @property
    def filter(self) -> Filter | None:
        """The view as one filter over EXPERIENCES; None when it holds every row."""
        parts: list[Filter] = [] if self.rows is None else [Compare("seq", "lt", self.rows)]
        parts += [] if self.where is None else [self.where]
        return None if not parts else parts[0] if len(parts) == 1 else And(tuple(parts))

    def read(self, buffer: Buffer, columns: Sequence[str] | None = None) -> pa.Table:
        """Its rows, in ascending order of seq."""
        names = list(columns) if columns is not None else EXPERIENCES.names
        wanted = names if "seq" in names else [*names, "seq"]
        return buffer.read("experiences", wanted, self.filter).sort_by("seq").select(names)

    def batches(self, buffer: Buffer, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows in batches, in bounded memory."""
        return buffer.batches("experiences", columns, self.filter)


@dataclass(frozen=True, slots=True)
class Tag:
    """A named view."""

    name: str
    view: View | None
    """None: its filter cannot be read."""
    note: str
    created_at: datetime
    fault: str = ""
    """Reason why its filter cannot be read."""

    def as_json(self) -> dict[str, object]:
        """The fields as plain values, for JSON."""
        view = self.view or View()
        return {
            "name": self.name,
            "rows": view.rows,
            "filter": None if view.where is None else to_json(view.where),
            "note": self.note,
            "created_at": self.created_at.isoformat(),
            "fault": self.fault,
        }


def tag(buffer: Buffer, name: str, where: Filter | None = None, note: str = "") -> Tag:
    """Name the experiences that are stored now (and that `where` lets through). For the buffer's owner.

    A tag never changes: the same name with the same rows again has no effect.
    Raises: ConflictError if the name is a tag of other rows; RecipeError for an empty name, or a filter that
        does not fit.
    """
    if not name or not name.isprintable():
        raise RecipeError(f"{name!r} is no name for a tag; wanted printable characters, at least one.")
    wanted = View(frontier(buffer), None if where is None else bind(where, EXPERIENCES))
    known = {tag_.name: tag_ for tag_ in tags(buffer)}
    if name in known:
        named = known[name].view
        if named == wanted:
            return known[name]
        made = f"made {known[name].created_at:%Y-%m-%d %H:%M}"
        rows = "those of a filter that cannot be read" if named is None else f"below row {named.rows}"
        raise ConflictError(
            f"tag '{name}' of buffer {buffer.location} names other rows ({rows}, {made}); choose another "
            "name, because a tag never changes."
        )
    filter_json = None if wanted.where is None else to_json(wanted.where)
    buffer.add_rows("tags", [{"name": name, "rows": wanted.rows, "filter": filter_json, "note": note}])
    return {tag_.name: tag_ for tag_ in tags(buffer)}[name]


def frontier(buffer: Buffer) -> int:
    """One past the highest row number stored; 0 in an empty buffer."""
    newest = buffer.tail("experiences", 1, ["seq"])
    return int(newest.column("seq")[0].as_py()) + 1 if newest.num_rows else 0


def tags(buffer: Buffer) -> list[Tag]:
    """Every tag, oldest first; one whose filter cannot be read has a `fault`."""
    return [_tag(row) for row in from_table(buffer.read("tags"), TAGS)]


def _tag(row: Mapping[str, Any]) -> Tag:
    try:
        where = None if row["filter"] is None else parse_filter(row["filter"], EXPERIENCES)
    except RecipeError as err:
        return Tag(row["name"], None, row["note"], row["created_at"], str(err))
    return Tag(row["name"], View(row["rows"], where), row["note"], row["created_at"])


def view(buffer: Buffer, name: str) -> View:
    """The view that a tag names.

    Raises: RecipeError if there is no such tag.
    """
    known = {tag_.name: tag_ for tag_ in tags(buffer)}
    if name not in known:
        raise RecipeError(
            f"buffer {buffer.location} has no tag '{name}';{suggest(name, known)} "
            f"There are: {', '.join(known) or 'none'}. Make one with `rft buffer tag`."
        )
    named = known[name].view
    if named is None:
        raise RecipeError(
            f"tag '{name}' of buffer {buffer.location} has a filter that cannot be read "
            f"({known[name].fault}); name the rows again, under another name."
        )
    return named
