"""How two judgements of the same rows differ: which rows are kept, and with which advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.words import Verdict

CHANGED = 1e-6
"""Advantages and rewards that differ by no more are the same (float32, another order of sums)."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row that one side keeps and the other does not."""

    experience_id: str
    first: str
    """`kept`, or the verdict, operator and reason."""
    second: str


@dataclass(slots=True)
class Difference:
    """Over all rows seen; the first side is the recipe, the second what it is compared with."""

    rows: int = 0
    both: int = 0
    """Rows kept by both."""
    only_first: int = 0
    only_second: int = 0
    unjudged: int = 0
    """Rows without a verdict of the second side; not counted elsewhere."""
    advantage_changed: int = 0
    """Rows kept by both whose advantage differs by more than CHANGED, or in length."""
    advantage_max: float = 0.0
    """Largest absolute difference of an advantage, over rows kept by both with as many values."""
    shaped_changed: int = 0
    """Rows kept by both whose shaped reward differs by more than CHANGED, or is there on one side only."""
    shaped_max: float = 0.0
    masked_changed: int = 0
    """Rows kept by both of which one side leaves the tokens out of the loss."""
    examples: list[Example] = field(default_factory=list)
    """The first rows that one side keeps and the other does not."""

    def add(self, first: pa.Table, second: pa.Table, examples: int) -> None:
        """Compare two tables of annotations, row by row.

        Args:
            second: all nulls in a row without a verdict.
            examples: how many examples to keep at most, over all calls.
        """
        judged = np.asarray(second.column("verdict").is_valid())
        mine = np.asarray(pc.equal(first.column("verdict"), Verdict.KEPT))
        theirs = np.asarray(pc.equal(second.column("verdict"), Verdict.KEPT).fill_null(False))
        self.rows += first.num_rows
        self.unjudged += int((~judged).sum())
        self.only_first += int((mine & judged & ~theirs).sum())
        self.only_second += int((theirs & ~mine).sum())
        both = np.flatnonzero(mine & theirs)
        self.both += len(both)
        self._advantages(first.take(both), second.take(both))
        self._shaped(first.take(both), second.take(both))
        self._masks(first.take(both), second.take(both))
        other = np.flatnonzero((mine != theirs) & judged)[: max(0, examples - len(self.examples))]
        for one, two in zip(first.take(other).to_pylist(), second.take(other).to_pylist(), strict=True):
            self.examples.append(Example(one["experience_id"], _decision(one), _decision(two)))

    def _advantages(self, first: pa.Table, second: pa.Table) -> None:
        lists = [_one(table, "advantage") for table in (first, second)]
        sizes = [np.asarray(pc.list_value_length(column).fill_null(-1)) for column in lists]
        same = sizes[0] == sizes[1]
        rows = np.flatnonzero(same & (sizes[0] > 0))
        gaps = np.abs(np.subtract(*(_values(column, rows) for column in lists)))
        largest = np.zeros(0)
        if len(rows):
            starts = np.cumsum(sizes[0][rows]) - sizes[0][rows]
            largest = np.maximum.reduceat(gaps, starts)
            self.advantage_max = max(self.advantage_max, float(largest.max()))
        self.advantage_changed += int((~same).sum()) + int((largest > CHANGED).sum())

    def _shaped(self, first: pa.Table, second: pa.Table) -> None:
        one, two = (
            _one(table, "shaped_reward").cast(pa.float64()).to_numpy(False) for table in (first, second)
        )
        one_sided = np.isnan(one) != np.isnan(two)
        gaps = np.nan_to_num(np.abs(one - two), nan=0.0)
        self.shaped_changed += int((one_sided | (gaps > CHANGED)).sum())
        self.shaped_max = max(self.shaped_max, float(gaps.max(initial=0.0)))

    def _masks(self, first: pa.Table, second: pa.Table) -> None:
        if "masked" in first.column_names and "masked" in second.column_names:
            one, two = (np.asarray(_one(table, "masked").fill_null(False)) for table in (first, second))
            self.masked_changed += int((one != two).sum())


def _one(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


def _values(column: pa.ListArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The values of some rows' lists, one list behind the other."""
    return np.asarray(column.take(pa.array(rows)).flatten(), np.float64)


def _decision(row: Mapping[str, object]) -> str:
    verdict = str(row["verdict"])
    return verdict if verdict == Verdict.KEPT else f"{verdict} by {row['dropped_by'] or '?'}: {row['reason']}"
