"""Stored rows by group, for whatever judges whole groups again: row numbers; the rows are a `take` away."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare, Filter, In, filter_columns
from rft_data.core.words import RowSource

JUDGED = (RowSource.IMPORT, RowSource.ROLLOUT)
"""Sources that operators and people judge; evaluation, probe and expert rows are nobody's group."""

Seqs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Row numbers of some groups, group by group. 8 bytes a row, and the names."""

    names: tuple[str, ...]
    """Group ids, in the order their first rows were stored."""
    seqs: Seqs
    """Row numbers: those of the first group, ascending, then those of the next."""
    ends: Seqs
    """For each group, where its row numbers end in `seqs`."""

    def __len__(self) -> int:
        return len(self.names)

    def group(self, place: int) -> Seqs:
        """The row numbers of one group."""
        return self.seqs[self.ends[place - 1] if place else 0 : self.ends[place]]

    def batches(self, groups: int) -> Iterator[Seqs]:
        """Row numbers of `groups` whole groups at a time; the last may be fewer."""
        begin = 0
        for last in range(groups, len(self.names) + groups, groups):
            end = int(self.ends[min(last, len(self.names)) - 1])
            yield self.seqs[begin:end]
            begin = end

    def only(self, names: Collection[str]) -> GroupRows:
        """Those of the groups that have one of these names."""
        kept = [place for place, name in enumerate(self.names) if name in names]
        parts = [self.group(place) for place in kept]
        return _laid_out([self.names[place] for place in kept], parts)


def rows_by_group(buffer: Buffer, where: Filter | None) -> GroupRows:
    """The rows that a filter lets through, by group; one scan of two narrow columns."""
    numbers: dict[str, int] = {}
    seqs: list[Seqs] = [np.zeros(0, np.int64)]
    codes: list[Seqs] = [np.zeros(0, np.int64)]
    for batch in buffer.batches("experiences", ["seq", "group_id"], where):
        encoded = batch.column("group_id").dictionary_encode()
        known = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
        codes.append(np.array(known, np.int64)[np.asarray(encoded.indices)])
        seqs.append(np.asarray(batch.column("seq"), np.int64))
    of_row = np.concatenate(codes)
    order = np.argsort(of_row, kind="stable")
    ends = np.cumsum(np.bincount(of_row, minlength=len(numbers))).astype(np.int64)
    return GroupRows(tuple(numbers), np.concatenate(seqs)[order], ends)


def whole_groups(buffer: Buffer, run_id: str | None = None, where: Filter | None = None) -> GroupRows:
    """Groups with a row that `where` lets through, whole: also with those of their rows that it does not.

    Args:
        run_id: only this run's; None: of every run.
        where: None for all. Only rows of source JUDGED take part, unless the filter speaks of `source`.
    """
    base = judgeable(run_id, where)
    rows = rows_by_group(buffer, base)
    if where is None:
        return rows
    return rows.only(set(rows_by_group(buffer, And((base, where))).names))


def judgeable(run_id: str | None, where: Filter | None) -> Filter:
    """Rows of a run, or of all, that may be judged; a filter that speaks of `source` decides that itself."""
    parts: list[Filter] = [] if run_id is None else [Compare("run_id", "eq", run_id)]
    if where is None or "source" not in filter_columns(where):
        parts.append(In("source", JUDGED))
    return And(tuple(parts))


def _laid_out(names: list[str], parts: list[Seqs]) -> GroupRows:
    ends = np.cumsum([len(part) for part in parts]).astype(np.int64)
    return GroupRows(tuple(names), np.concatenate([np.zeros(0, np.int64), *parts]), ends)
