"""Arrays of group members by place, so that numpy handles many groups in one call.

A member is one rollout: one row, or the turns of one (group, member).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.base import GROUP_KEY, Judgement
from ops.grouping import Groups
from ops.rollouts import ROLLOUT_COLUMNS, Rollouts, place_in_group
from ops.similarity.overlap import Bools, Ints, Similarities

Floats = npt.NDArray[np.float64]

_PART_ROWS = 128
"""Smallest number of rows in a part, except the last one; the n-grams of so many rows fit the CPU cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some whole groups: N rows of the table, in G groups of at most M members."""

    rows: Ints
    """N row numbers in the table, group after group, by place."""
    group: Ints
    """N group numbers, 0-based in this part."""
    place: Ints
    """N places in the group, 0-based; rows of one place are one member's turns."""
    shape: tuple[int, int]
    """(G, M)."""
    first: Ints
    """[G, M]: row number in the table of a member's first row here; -1 where there is no member."""


def parts(table: pa.Table, preference: Floats | None) -> Iterator[Part]:
    """All groups of `table` in parts of at least _PART_ROWS rows; groups of similar size share a part.

    Args: `preference`: N numbers; a member's last turn counts. Places go from the largest to the smallest
        number, NaN last, ties by `member`. None: places go by `member`.
    Raises: ValueError when two rows are the same turn of one member.
    """
    groups = Groups.of(table, GROUP_KEY)
    rollouts = Rollouts.of(table, groups)
    number = np.arange(len(rollouts.last))
    if "member" in table.column_names:
        number = table["member"].to_numpy()[rollouts.last]
    wanted = np.zeros(len(number)) if preference is None else preference[rollouts.last]
    order = place_in_group(rollouts.group, np.where(np.isnan(wanted), np.inf, -wanted), number)
    place = order[rollouts.codes]
    sizes = np.bincount(groups.codes, minlength=groups.count)
    by_size = np.argsort(sizes, kind="stable")
    part_number = np.empty(groups.count, np.int64)
    part_number[by_size] = (np.cumsum(sizes[by_size]) - sizes[by_size]) // _PART_ROWS
    part = part_number[groups.codes]
    rows = np.lexsort((place, groups.codes, part))
    for mine in np.split(rows, np.flatnonzero(np.diff(part[rows])) + 1):
        yield _part(mine, groups.codes[mine], place[mine])


def _part(rows: Ints, codes: Ints, place: Ints) -> Part:
    group = np.unique(codes, return_inverse=True)[1]
    shape = int(group.max(initial=-1)) + 1, int(place.max(initial=-1)) + 1
    first = np.full(shape, -1)
    first[group[::-1], place[::-1]] = rows[::-1]
    return Part(rows, group, place, shape, first)


def thinned(
    table: pa.Table,
    preference: Floats | None,
    judge: Callable[[Part], tuple[Bools, Ints, Similarities]],
    reason: str,
) -> Judgement:
    """Drop members that are too similar to a member of their group that is kept.

    Args:
        preference: see `parts`.
        judge: returns, for a part: which members are kept, [G, M]; for a dropped member the place of the kept
            one it is similar to, [G, M]; and the similarities, [G, M, M], read at [g, kept, dropped].
        reason: text with the fields `{member}` (the one that is kept) and `{similarity}`.
    """
    keep = np.ones(table.num_rows, np.bool_)
    why = np.empty(table.num_rows, object)
    names = numbers(table, "member")
    for part in parts(table, preference):
        kept, like, similarity = judge(part)
        keep[part.rows] = kept[part.group, part.place]
        for at in np.flatnonzero(~keep[part.rows]):
            group, place = part.group[at], part.place[at]
            other = like[group, place]
            why[part.rows[at]] = reason.format(
                member=names[part.first[group, other]], similarity=similarity[group, other, place]
            )
    return Judgement(keep, why[~keep].tolist())


def numbers(table: pa.Table, column: str) -> Ints:
    """The numbers by which reasons name rows: the values of `column`, else the row numbers in `table`."""
    return table[column].to_numpy() if column in table.column_names else np.arange(table.num_rows)


def whole_rollouts(table: pa.Table, keep: Bools) -> Bools:
    """Turn verdicts on rows into verdicts on rollouts: a rollout is dropped when all its turns are."""
    if not {GROUP_KEY, *ROLLOUT_COLUMNS} <= set(table.column_names):
        return keep
    turns = Rollouts.of(table, Groups.of(table, GROUP_KEY)).codes
    together: Bools = (np.bincount(turns, keep) > 0)[turns]
    return together
