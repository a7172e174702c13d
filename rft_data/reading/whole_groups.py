"""Row numbers of stored experiences by group, for callers that judge whole groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare, Filter, In, filter_columns
from rft_data.core.words import RowSource

JUDGED = (RowSource.IMPORT, RowSource.ROLLOUT)
"""Sources that operators and people judge; evaluation, probe and expert rows are not judged."""

Seqs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Row numbers of some groups. Memory: 8 bytes a row, and the names."""

    names: tuple[str, ...]
    """Group ids, in the order their first rows were stored."""
    seqs: Seqs
    """Row numbers of the first group, ascending, then those of the second, and so on."""
    ends: Seqs
    """For each group, the place in `seqs` after its last row number."""

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
        """The groups that have one of these names."""
        kept = [place for place, name in enumerate(self.names) if name in names]
        parts = [self.group(place) for place in kept]
        return _group_rows([self.names[place] for place in kept], parts)


def rows_by_group(buffer: Buffer, where: Filter | None) -> GroupRows:
    """The rows that a filter lets through, by group; reads two narrow columns once."""
    numbers: dict[str, int] = {}
    seqs: list[Seqs] = [np.zeros(0, np.int64)]
    codes: list[Seqs] = [np.zeros(0, np.int64)]
    for batch in buffer.batches("experiences", ["seq", "group_id"], where):
        encoded = batch.column("group_id").dictionary_encode()
        known = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
        codes.append(np.array(known, np.int64)[np.asarray(encoded.indices)])
        seqs.append(np.asarray(batch.column("seq"), np.int64))
    groups = np.concatenate(codes)
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups, minlength=len(numbers))).astype(np.int64)
    return GroupRows(tuple(numbers), np.concatenate(seqs)[order], ends)


def whole_groups(buffer: Buffer, run_id: str | None = None, where: Filter | None = None) -> GroupRows:
    """Groups with at least one row that `where` lets through, with all their rows.

    Args:
        run_id: only groups of this run; None: of all runs.
        where: None: all groups. Only rows whose source is in JUDGED count, unless the filter names `source`.
    """
    base = judgeable(run_id, where)
    rows = rows_by_group(buffer, base)
    if where is None:
        return rows
    return rows.only(set(rows_by_group(buffer, And((base, where))).names))


def judgeable(run_id: str | None, where: Filter | None) -> Filter:
    """A filter for the rows of a run (None: all) that may be judged: by source, unless `where` names it."""
    parts: list[Filter] = [] if run_id is None else [Compare("run_id", "eq", run_id)]
    if where is None or "source" not in filter_columns(where):
        parts.append(In("source", JUDGED))
    return And(tuple(parts))


def _group_rows(names: list[str], parts: list[Seqs]) -> GroupRows:
    ends = np.cumsum([len(part) for part in parts]).astype(np.int64)
    return GroupRows(tuple(names), np.concatenate([np.zeros(0, np.int64), *parts]), ends)
