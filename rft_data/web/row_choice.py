"""The rows that a person asked for: a filter as text, and a verdict of the operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare, Filter, In, filter_columns, parse_text, read_text, to_text
from rft_data.core.schema import EXPERIENCES
from rft_data.core.words import Verdict

AskedVerdict: TypeAlias = Verdict | Literal["", "none"]
"""Empty: any; none: no operator has judged the row."""
WINDOW = 50_000
"""Newest rows that a filter over long texts looks at in one go."""
MOST_ROWS = 4_000_000
"""Newest rows that a filter over short columns looks at in one go."""
_NAMED = 256
"""So many rows are asked for by their numbers, which is a look and no search."""
_LONG = frozenset(
    field.name
    for field in EXPERIENCES
    if pa.types.is_list(field.type) or (field.metadata or {}).get(b"json") or field.name == "completion_text"
)
"""Columns that take long to read."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The experiences that a filter and a verdict let through."""

    where: Filter | None = None
    verdict: AskedVerdict = ""

    @property
    def everything(self) -> bool:
        """Whether nothing was asked for."""
        return self.where is None and not self.verdict

    def reach(self, *columns: str) -> int:
        """How many rows may be looked at in one go, when these columns are read too."""
        read = set(columns) | (set() if self.where is None else filter_columns(self.where))
        return WINDOW if read & _LONG else MOST_ROWS

    def read(self, buffer: Buffer, columns: list[str], bottom: int, top: int) -> pa.Table:
        """Columns of the chosen rows with bottom <= seq < top; `seq` must be among them."""
        if self.everything and top - bottom <= _NAMED:
            return buffer.read("experiences", columns, In("seq", tuple(range(bottom, top))))
        parts: tuple[Filter, ...] = (Compare("seq", "ge", bottom), Compare("seq", "lt", top))
        if self.where is not None:
            parts = (*parts, self.where)
        rows = buffer.read("experiences", columns, And(parts))
        if not self.verdict or not rows.num_rows:
            return rows
        wanted = _judged(buffer, self.verdict, bottom, top)
        return rows.filter(pa.array(wanted[rows["seq"].to_numpy() - bottom]))


def chosen(text: str, verdict: AskedVerdict = "") -> Choice:
    """The choice that a person wrote.

    Raises: RecipeError that says what is wrong with the filter.
    """
    return Choice(parse_text(text, EXPERIENCES) if text.strip() else None, verdict)


def pieces(text: str) -> list[str]:
    """The parts of a filter that must all hold, each as text; for one that `chosen` accepts."""
    if not text.strip():
        return []
    return [to_text(part) for part in _conjuncts(read_text(text))]


def joined(parts: list[str]) -> str:
    """The filter whose parts must all hold."""
    if len(parts) == 1:
        return parts[0]
    return to_text(And(tuple(read_text(part) for part in parts))) if parts else ""


def _conjuncts(filter_: Filter) -> Iterator[Filter]:
    """The parts of a filter that must all hold, those of parentheses too."""
    if isinstance(filter_, And):
        for part in filter_.parts:
            yield from _conjuncts(part)
    else:
        yield filter_


def _judged(buffer: Buffer, verdict: AskedVerdict, bottom: int, top: int) -> npt.NDArray[np.bool_]:
    """For each row number of a range, whether its newest verdict is the one asked for."""
    span = And((Compare("seq", "ge", bottom), Compare("seq", "lt", top)))
    found = buffer.read("annotations", ["seq", "verdict"], span)
    words = found["verdict"].combine_chunks().dictionary_encode()
    known = words.dictionary.to_pylist()
    newest = np.full(top - bottom, -1, np.int64)
    newest[found["seq"].to_numpy() - bottom] = words.indices.to_numpy()  # of several the last stays
    if verdict == "none":
        return newest < 0
    return np.equal(newest, known.index(verdict) if verdict in known else -2)
