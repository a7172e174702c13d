"""What was said about experiences later: read, folded to one number each, brought in from files.

Feedback is only ever added. Who changes his mind says something new; who takes back what he said adds a
withdrawal. Storing it is the buffer's business (`Buffer.add_feedback`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.codec import one_array
from rft_data.core.errors import RowError
from rft_data.core.filters import And, Compare, In
from rft_data.core.reader import BufferReader
from rft_data.core.rows import Feedback, now
from rft_data.core.schema import FEEDBACK
from rft_data.exchange.formats.jsonlines import Found, read_json

How: TypeAlias = Literal["last", "mean", "sum"]
WITHDRAWN = "rft:withdrawn"
"""How the text of a withdrawal begins: it takes back what its author said under its key before."""
_COLUMNS = ["experience_id", "author", "value", "text", "created_at"]
_FEW = 1_000
"""Ids that are looked for by a filter; for more, reading all under a key is quicker (measured)."""
_SHOWN = 20
_BRIEF = 80


@dataclass(frozen=True, slots=True)
class Folded:
    """One number for each experience that something was said about."""

    ids: pa.Array
    """Experience ids, distinct."""
    values: npt.NDArray[np.float64]
    """As many finite numbers."""

    def values_for(self, ids: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
        """One number for each of `ids`, NaN where nothing was said."""
        if not len(self.ids):
            return np.full(len(ids), np.nan)
        places = pc.index_in(ids, value_set=self.ids)
        known = np.asarray(places.is_valid())
        at = np.asarray(places.fill_null(0))
        return np.where(known, self.values[at], np.nan)


def feedback_about(store: BufferReader, key: str, ids: Sequence[str]) -> pa.Table:
    """Feedback under one key about some experiences, in the order it was stored; `store` is a buffer."""
    under = Compare("key", "eq", key)
    wanted = list(dict.fromkeys(ids))
    if len(wanted) <= _FEW:
        return store.read("feedback", _COLUMNS, And((under, In("experience_id", tuple(wanted)))))
    names = pa.array(wanted, pa.string())
    schema = pa.schema([FEEDBACK.field(name) for name in _COLUMNS])
    parts = [
        batch.filter(pc.is_in(batch.column("experience_id"), value_set=names))
        for batch in store.batches("feedback", _COLUMNS, under)
    ]
    return pa.Table.from_batches(parts, schema=schema)


def fold(said: pa.Table, how: How) -> Folded:
    """One number for each experience, from feedback under one key in the order it was stored.

    `last`: the newest value; `mean`: over authors, of each one's newest value; `sum`: of all values (the same
    said twice at one time, or at times that nobody told, is stored, and counts, once). Newest by
    `created_at`, then by order stored. Rows without a value say nothing; what was withdrawn does not count.
    """
    said = said.take(
        np.argsort(np.asarray(one_array(said.column("created_at")).cast(pa.int64())), kind="stable")
    )
    ids, authors = (one_array(said.column(name)).dictionary_encode() for name in ("experience_id", "author"))
    of = np.asarray(ids.indices).astype(np.int64)
    said_by = of * max(1, len(authors.dictionary)) + np.asarray(authors.indices)
    values = one_array(said.column("value")).to_numpy(zero_copy_only=False).astype(np.float64)
    counts = np.isfinite(values) & ~_taken_back(said, said_by)
    of, said_by, values = of[counts], said_by[counts], values[counts]
    chosen = np.arange(len(of)) if how == "sum" else _last_places(of if how == "last" else said_by)
    number = len(ids.dictionary)
    total = np.bincount(of[chosen], values[chosen], number)
    times = np.bincount(of[chosen], minlength=number)
    known = np.flatnonzero(times)
    return Folded(ids.dictionary.take(pa.array(known)), total[known] / (times[known] if how == "mean" else 1))


def _taken_back(said: pa.Table, said_by: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Rows that their author withdrew later; `said` by time, `said_by` names (experience, author)."""
    text = one_array(said.column("text"))
    withdrawal = np.asarray(
        pc.and_(one_array(said.column("value")).is_null(), pc.starts_with(text, WITHDRAWN)).fill_null(False)
    )
    taken = np.zeros(len(said_by), np.bool_)
    at = np.flatnonzero(withdrawal)
    if len(at):
        newest = at[_last_places(said_by[at])]
        order = np.argsort(said_by[newest])
        who, when = said_by[newest][order], newest[order]
        place = np.minimum(np.searchsorted(who, said_by), len(who) - 1)
        taken = (who[place] == said_by) & (np.arange(len(said_by)) <= when[place])
    return taken


def _last_places(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last place of each distinct code, ascending."""
    _, first_from_behind = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - first_from_behind)


def withdrawal(item: Feedback, earlier: int) -> Feedback:
    """What takes `item` back; `earlier`: how much its author has said there, so that it is not said yet."""
    return replace(item, value=None, text=f"{WITHDRAWN} {earlier}", created_at=now())


def is_withdrawal(value: float | None, text: str | None) -> bool:
    """Whether a row of feedback takes back what was said before it."""
    return value is None and text is not None and text.startswith(WITHDRAWN)


# --- from files ------------------------------------------------------------------------------------------

_KNOWN = ("experience_id", "key", "value", "text", "author", "created_at")


def read_feedback(path: Path, author: str | None = None) -> list[Feedback]:
    """Feedback from a .jsonl or .json file; one object with the fields of `Feedback` for each.

    `author`: of rows that name none. A row has a `value`, a `text`, or both.
    Raises: RowError naming every line that is not feedback (the first 20); nothing is to be stored then.
    """
    good: list[Feedback] = []
    problems: list[str] = []
    for found in json_rows(path):
        try:
            good.append(_feedback(found, author))
        except RowError as err:
            problems.append(f"{found.place}: {err}")
    if problems:
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listed = "\n  ".join(problems[:_SHOWN])
        raise RowError(f"{path} holds lines that are not feedback; nothing is stored:\n  {listed}{more}")
    return good


def json_rows(path: Path) -> Iterator[Found]:
    """The objects of a file, of which nothing is stored before the last is read.

    Raises: RowError when the file cannot be read on from some line.
    """
    try:
        yield from read_json(path)
    except RowError as err:
        what = str(err).partition(". Rows before this line")[0]  # true of imports that store as they read
        raise RowError(f"{what}. Nothing is stored; mend the file and import it again.") from err


def _feedback(found: Found, author: str | None) -> Feedback:
    row = found.row
    if row is None:
        raise RowError(found.reason)
    unknown = [name for name in row if name not in _KNOWN]
    if unknown:
        raise RowError(f"unknown field '{unknown[0]}'; a line has {', '.join(_KNOWN)}")
    row = {"author": author, **{name: value for name, value in row.items() if value is not None}}
    for name in ("experience_id", "key", "author"):
        if not isinstance(row.get(name), str) or not row[name]:
            raise RowError(f"'{name}' is {brief(row.get(name))}; a text is needed")
        storable(row[name], f"'{name}'")
    value, text = row.get("value"), row.get("text")
    if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
        raise RowError(f"'value' is {brief(value)}; a number is needed")
    number = None if value is None else finite(value, "'value'")
    if not (text is None or isinstance(text, str)) or (text is None and value is None):
        raise RowError(f"'text' is {brief(text)} and 'value' is {number}; one of them is needed")
    if text is not None:
        storable(text, "'text'")
    return Feedback(
        experience_id=row["experience_id"],
        author=row["author"],
        key=row["key"],
        value=number,
        text=text,
        created_at=parse_time(row["created_at"]) if "created_at" in row else None,
    )


def storable(text: str, what: str) -> str:
    """`text`, which may be stored; `what` names it in the error.

    Raises: RowError for half a surrogate pair, which no encoding can write.
    """
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise RowError(f"{what} is {brief(text)}, which is not Unicode at character {err.start + 1}") from err
    return text


def finite(value: float, what: str) -> float:
    """`value` as a float; `what` names it in the error.

    Raises: RowError if it is not finite, or an integer larger than any float.
    """
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RowError(f"{what} is {brief(value)}; a finite number is needed")
    return number


def brief(value: Any) -> str:
    """A value for an error message, of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 3]}..."


def parse_time(value: Any) -> datetime:
    """A time from ISO text, in UTC; without a zone it is UTC.

    Raises: RowError.
    """
    try:
        found = datetime.fromisoformat(value)
        return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as err:
        raise RowError(f"{brief(value)} is not a time; write for example 2026-01-31T12:00:00Z") from err
