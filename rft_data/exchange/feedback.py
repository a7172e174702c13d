"""Feedback on experiences: read from a buffer, folded to one number for each, and read from files.

Feedback is only added, never changed: an author corrects himself with newer feedback, and takes feedback back
with a withdrawal. `Buffer.add_feedback` stores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

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
from rft_data.core.words import FeedbackKey
from rft_data.exchange.formats.jsonlines import Found, read_json

How: TypeAlias = Literal["last", "mean", "sum"]
WITHDRAWN = "rft:withdrawn"
CHOICES = (FeedbackKey.PREFERRED, FeedbackKey.SKIPPED)
"""Keys under which a text begins with the id of another experience."""
"""Beginning of a withdrawal's text. It cancels what its author gave earlier under its key on its row."""
_COLUMNS = ["experience_id", "author", "value", "text", "created_at"]
_FEW = 1_000
"""Up to so many ids are found with a filter; for more, reading all feedback of a key is faster (measured)."""
_SHOWN = 20
_BRIEF = 80


@dataclass(frozen=True, slots=True)
class Folded:
    """One number for each experience that has feedback."""

    ids: pa.Array
    """Distinct experience ids."""
    values: npt.NDArray[np.float64]
    """Finite numbers, one for each id."""

    def values_for(self, ids: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
        """One number for each of `ids`; NaN for an id without feedback."""
        if not len(self.ids):
            return np.full(len(ids), np.nan)
        places = pc.index_in(ids, value_set=self.ids)
        known = np.asarray(places.is_valid())
        positions = np.asarray(places.fill_null(0))
        return np.where(known, self.values[positions], np.nan)


def feedback_about(store: BufferReader, key: str, ids: Sequence[str]) -> pa.Table:
    """Feedback under one key on some experiences, in the order it was stored."""
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


def fold(feedback: pa.Table, how: How) -> Folded:
    """One number for each experience, from feedback under one key in the order it was stored.

    `last`: the newest value. `mean`: over authors, of the newest value of each. `sum`: of all values (equal
    feedback of one time, or without a time, is stored once and counts once). Newest: by `created_at`, then by
    the order stored. Rows without a value, and values withdrawn, do not count.
    """
    times = np.asarray(one_array(feedback.column("created_at")).cast(pa.int64()))
    feedback = feedback.take(np.argsort(times, kind="stable"))
    ids = one_array(feedback.column("experience_id")).dictionary_encode()
    authors = one_array(feedback.column("author")).dictionary_encode()
    rows = np.asarray(ids.indices).astype(np.int64)
    sources = rows * max(1, len(authors.dictionary)) + np.asarray(authors.indices)
    values = one_array(feedback.column("value")).to_numpy(zero_copy_only=False).astype(np.float64)
    counts = np.isfinite(values) & ~_withdrawn(feedback, sources)
    rows, sources, values = rows[counts], sources[counts], values[counts]
    chosen = np.arange(len(rows)) if how == "sum" else _last_places(rows if how == "last" else sources)
    number = len(ids.dictionary)
    total = np.bincount(rows[chosen], values[chosen], number)
    summed = np.bincount(rows[chosen], minlength=number)
    known = np.flatnonzero(summed)
    divisor = summed[known] if how == "mean" else 1
    return Folded(ids.dictionary.take(pa.array(known)), total[known] / divisor)


def _withdrawn(feedback: pa.Table, sources: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Rows that their author withdrew later.

    Args:
        feedback: ordered by time.
        sources: for each row a code of its (experience, author).
    """
    text = one_array(feedback.column("text"))
    no_value = one_array(feedback.column("value")).is_null()
    withdrawals = np.flatnonzero(
        np.asarray(pc.and_(no_value, pc.starts_with(text, WITHDRAWN)).fill_null(False))
    )
    if not len(withdrawals):
        return np.zeros(len(sources), np.bool_)
    newest = withdrawals[_last_places(sources[withdrawals])]
    order = np.argsort(sources[newest])
    codes, rows = sources[newest][order], newest[order]
    place = np.minimum(np.searchsorted(codes, sources), len(codes) - 1)
    earlier: npt.NDArray[np.bool_] = (codes[place] == sources) & (np.arange(len(sources)) <= rows[place])
    return earlier


def _last_places(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last place of each distinct code, ascending."""
    _, first_reversed = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - first_reversed)


def withdrawal(item: Feedback, earlier: int) -> Feedback:
    """Feedback that withdraws what its author said under its key on its experience.

    Of a choice between two (its text begins with the id of the other one) only those with the same other one
    are withdrawn.
    `earlier`: how many rows of feedback its author has stored under this key on this experience. It makes the
    withdrawal differ from earlier ones: equal feedback is stored once.
    """
    other = partner(item.key, item.text)
    return replace(item, value=None, text=f"{WITHDRAWN} {earlier} {other}".rstrip(), created_at=now())


def withdrawn_partner(text: str) -> str:
    """The other one of the choices that a withdrawal is about; empty: it is about all that was said."""
    return "".join(text.split()[2:3])


def partner(key: str, text: str | None) -> str:
    """The experience beside which a choice was made; empty for what is no choice."""
    return "".join((text or "").split()[:1]) if key in CHOICES else ""


def is_withdrawal(value: float | None, text: str | None) -> bool:
    """Whether a row of feedback is a withdrawal."""
    return value is None and text is not None and text.startswith(WITHDRAWN)


# --- from files ------------------------------------------------------------------------------------------

_KNOWN = ("experience_id", "key", "value", "text", "author", "created_at")


def read_feedback(path: Path, author: str | None = None) -> list[Feedback]:
    """Feedback from a .jsonl or .json file of objects with the fields of `Feedback`.

    `author`: the author of objects that name none. An object has a `value`, a `text`, or both.
    Raises: RowError naming the first 20 lines that are not feedback; the caller stores nothing then.
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
    """The objects of a file, for callers that store nothing before they have read all of it.

    Raises: RowError when the rest of the file cannot be read.
    """
    try:
        yield from read_json(path)
    except RowError as err:
        raise RowError(f"{err} Nothing is stored; mend the file and import it again.") from err


def _feedback(found: Found, author: str | None) -> Feedback:
    row = found.row
    if row is None:
        raise RowError(found.reason)
    unknown = [name for name in row if name not in _KNOWN]
    if unknown:
        raise RowError(f"unknown field '{unknown[0]}'; a line has {', '.join(_KNOWN)}")
    row = {"author": author, **{name: value for name, value in row.items() if value is not None}}
    experience_id = _name(row, "experience_id")
    key = _name(row, "key")
    author = _name(row, "author")
    value, text = row.get("value"), row.get("text")
    if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
        raise RowError(f"'value' is {brief(value)}; a number is needed")
    number = None if value is None else finite(value, "'value'")
    if not (text is None or isinstance(text, str)) or (text is None and value is None):
        raise RowError(f"'text' is {brief(text)} and 'value' is {number}; one of them is needed")
    if text is not None:
        storable(text, "'text'")
    return Feedback(
        experience_id=experience_id,
        author=author,
        key=key,
        value=number,
        text=text,
        created_at=parse_time(row["created_at"]) if "created_at" in row else None,
    )


def _name(row: Mapping[str, object], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise RowError(f"'{field}' is {brief(value)}; a text is needed")
    return storable(value, f"'{field}'")


def storable(text: str, what: str) -> str:
    """`text`, if it can be stored; `what` names it in the error.

    Raises: RowError for a lone surrogate, which has no UTF-8 form.
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


def brief(value: object) -> str:
    """A value in an error message, in at most 80 characters."""
    text = repr(value)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 3]}..."


def parse_time(value: object) -> datetime:
    """The time that an ISO text names, in UTC; a text without a zone is taken as UTC.

    Raises: RowError for any other value.
    """
    try:
        if not isinstance(value, str):
            raise TypeError(type(value).__name__)
        found = datetime.fromisoformat(value)
        return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as err:
        raise RowError(f"{brief(value)} is not a time; write for example 2026-01-31T12:00:00Z") from err
