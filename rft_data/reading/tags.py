"""Views: the experiences that were there at some moment, or some of them, for ever the same; and branches.

Experiences are never changed and are numbered as they come, so `seq < N and <filter>` names the same rows
for good, over any appends and compactions. No copy is made until `branch` makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """Only those with seq below this; None: all, so that the set grows with the buffer."""
    where: Filter | None = None
    """Only those this filter lets through; None: all."""

    @property
    def filter(self) -> Filter | None:
        """The view as one filter over EXPERIENCES; None when it holds every row."""
        parts: list[Filter] = [] if self.rows is None else [Compare("seq", "lt", self.rows)]
        parts += [] if self.where is None else [self.where]
        return None if not parts else parts[0] if len(parts) == 1 else And(tuple(parts))

    def read(self, buffer: Buffer, columns: Sequence[str] | None = None) -> pa.Table:
        """Its rows, by growing seq."""
        names = list(columns) if columns is not None else EXPERIENCES.names
        wanted = names if "seq" in names else [*names, "seq"]
        return buffer.read("experiences", wanted, self.filter).sort_by("seq").select(names)

    def batches(self, buffer: Buffer, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows batch by batch, in bounded memory."""
        return buffer.batches("experiences", columns, self.filter)


@dataclass(frozen=True, slots=True)
class Tag:
    """A named view."""

    name: str
    view: View
    note: str
    created_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        where = self.view.where
        return {
            "name": self.name,
            "rows": self.view.rows,
            "filter": None if where is None else to_json(where),
            "note": self.note,
            "created_at": self.created_at.isoformat(),
        }


def tag(buffer: Buffer, name: str, where: Filter | None = None, note: str = "") -> Tag:
    """Name the experiences that are stored now (and that `where` lets through). For the buffer's owner.

    A name means one set of rows for ever: tagging again with the same outcome changes nothing.
    Raises: ConflictError if the name stands for other rows; RecipeError on an empty name or a filter that
        does not fit.
    """
    if not name or not name.isprintable():
        raise RecipeError(f"{name!r} is no name for a tag; give it a printable one.")
    wanted = View(frontier(buffer), None if where is None else bind(where, EXPERIENCES))
    known = {tag_.name: tag_ for tag_ in tags(buffer)}
    if name in known:
        if known[name].view == wanted:
            return known[name]
        made = f"{known[name].created_at:%Y-%m-%d %H:%M}"
        raise ConflictError(
            f"tag '{name}' of buffer {buffer.location} stands for other rows (some or all of those below "
            f"{known[name].view.rows}, made {made}); choose another name, a tag never changes."
        )
    filter_json = None if wanted.where is None else to_json(wanted.where)
    buffer.add_rows("tags", [{"name": name, "rows": wanted.rows, "filter": filter_json, "note": note}])
    return {tag_.name: tag_ for tag_ in tags(buffer)}[name]


def frontier(buffer: Buffer) -> int:
    """One past the highest row number stored; 0 in an empty buffer."""
    newest = buffer.tail("experiences", 1)
    return int(newest.column("seq")[0].as_py()) + 1 if newest.num_rows else 0


def tags(buffer: Buffer) -> list[Tag]:
    """Every tag, oldest first."""
    return [
        Tag(
            row["name"],
            View(row["rows"], None if row["filter"] is None else parse_filter(row["filter"], EXPERIENCES)),
            row["note"],
            row["created_at"],
        )
        for row in from_table(buffer.read("tags"), TAGS)
    ]


def view(buffer: Buffer, name: str) -> View:
    """The view a tag names.

    Raises: RecipeError if there is no such tag.
    """
    known = {tag_.name: tag_.view for tag_ in tags(buffer)}
    if name not in known:
        raise RecipeError(
            f"buffer {buffer.location} has no tag '{name}';{suggest(name, known)} "
            f"There are: {', '.join(known) or 'none'}. Make one with `rft buffer tag`."
        )
    return known[name]
