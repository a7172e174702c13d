"""Rows of one rollout, and lengths of completions.

A row is one rollout unless a step-wise workflow made several of it: then the rows of one (group, member)
are its turns. Operators that choose among rollouts keep or drop all turns of one together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ops.base import GROUP_KEY
from ops.grouping import Groups
from rft_data.core.codec import one_array

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROLLOUT_COLUMNS = ("member", "turn")
LENGTH_COLUMNS = ("action_mask", "token_ids", "prompt_length")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rollout of each of N rows, and the group of each of R rollouts."""

    codes: Ints
    """N rollout numbers, 0-based."""
    last: Ints
    """R row numbers: the last turn of each rollout, which carries its outcome."""
    group: Ints
    """R group numbers."""

    @classmethod
    def of(cls, table: pa.Table, groups: Groups) -> Rollouts:
        """Rows with one (group, member) are one rollout. Without these columns each row is a rollout.

        Raises: ValueError when two rows are the same turn of the same member.
        """
        rows = table.num_rows
        if not set(ROLLOUT_COLUMNS) <= set(table.column_names) or rows == 0:
            return cls(np.arange(rows), np.arange(rows), groups.codes)
        member, turn = (table[name].to_numpy().astype(np.int64) for name in ROLLOUT_COLUMNS)
        if not turn.any() and _all_different(groups, member):
            return cls(np.arange(rows), np.arange(rows), groups.codes)
        order = np.lexsort((turn, member, groups.codes))
        same = (np.diff(groups.codes[order]) == 0) & (np.diff(member[order]) == 0)
        repeated = same & (np.diff(turn[order]) == 0)
        if repeated.any():
            row = order[int(np.argmax(repeated))]
            raise ValueError(
                f"two rows of one group are turn {turn[row]} of member {member[row]}; wanted every rollout "
                "of a group to have a `member` of its own, and every turn of it a `turn`"
            )
        number = np.concatenate([[0], np.cumsum(~same)])
        codes = np.empty(rows, np.int64)
        codes[order] = number
        last = order[np.append(np.flatnonzero(~same), rows - 1)]
        return cls(codes, last, groups.codes[last])

    def in_turn_order(self, table: pa.Table) -> Ints:
        """N row numbers: rollout after rollout, each in order of its turns."""
        if "turn" not in table.column_names:
            return np.argsort(self.codes, kind="stable")
        return np.lexsort((table["turn"].to_numpy(), self.codes))


def multi_turn_rollouts(table: pa.Table) -> Ints | None:
    """N rollout numbers of rows whose rollout has several turns, -1 of the others; None if none has.

    A rollout has several turns where one of its rows has a `turn` above 0.
    """
    if not {GROUP_KEY, *ROLLOUT_COLUMNS} <= set(table.column_names):
        return None
    if (pc.max(table["turn"]).as_py() or 0) <= 0:
        return None
    later = pc.fill_null(pc.greater(table["turn"], 0), False).to_numpy()
    group = Groups.of(table, GROUP_KEY).codes
    member = np.unique(table["member"].to_numpy(), return_inverse=True)[1]
    codes = np.unique(group * (int(member.max()) + 1) + member, return_inverse=True)[1]
    return np.where((np.bincount(codes, later) > 0)[codes], codes, -1)


def torn(turns: Ints, rows: Ints, lost: Mapping[int, str]) -> dict[int, str]:
    """Kept rows whose rollout lost another turn, with the reason to drop them too.

    Args:
        turns: as `multi_turn_rollouts` returns them.
        rows: numbers of the rows that are kept so far.
        lost: number of each dropped row to its reason.
    """
    gone = np.sort(np.fromiter(lost, np.int64, len(lost)))
    gone = gone[turns[gone] >= 0]
    rollouts, first = np.unique(turns[gone], return_index=True)
    why = {code: lost[row] for code, row in zip(rollouts.tolist(), gone[first].tolist(), strict=True)}
    left = rows[np.isin(turns[rows], rollouts)]
    return {
        row: f"another turn of its rollout was dropped: {why[code]}"
        for row, code in zip(left.tolist(), turns[left].tolist(), strict=True)
    }


def _all_different(groups: Groups, member: Ints) -> bool:
    """Whether no two rows of a group are the same member; False also where the check would take long."""
    width = int(member.max()) + 1
    if member.min() < 0 or groups.count * width > 8 * len(member):
        return False
    return bool(np.bincount(groups.codes * width + member).max() <= 1)


def completion_tokens(table: pa.Table) -> Floats:
    """Sampled tokens of each row: the sum of `action_mask`, else ids after the prompt; NaN if unknown."""
    tokens = np.full(table.num_rows, np.nan)
    if "action_mask" in table.column_names:
        lists = one_array(table["action_mask"])
        lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy()
        known = lists.is_valid().to_numpy(zero_copy_only=False)
        tokens[known] = 0.0
        filled = lengths > 0
        if filled.any():
            starts = (np.cumsum(lengths) - lengths)[filled]
            tokens[filled] = np.add.reduceat(lists.flatten().to_numpy(), starts, dtype=np.int32)
    unknown = np.isnan(tokens)
    if unknown.any() and {"token_ids", "prompt_length"} <= set(table.column_names):
        total = pc.list_value_length(table["token_ids"]).cast(pa.float64()).to_numpy()
        tokens = np.where(unknown, total - table["prompt_length"].to_numpy(), tokens)
    return tokens


def answer_lengths(table: pa.Table, groups: Groups) -> Floats:
    """Sampled tokens of each row, or characters in groups where not all are known; NaN if neither is."""
    tokens = completion_tokens(table)
    incomplete = np.bincount(groups.codes, np.isnan(tokens), groups.count) > 0
    if not incomplete.any() or "completion_text" not in table.column_names:
        return tokens
    characters = pc.utf8_length(table["completion_text"]).cast(pa.float64()).to_numpy()
    return np.where(incomplete[groups.codes], characters, tokens)


def id_ranks(table: pa.Table) -> Ints:
    """N places of the rows in the order of `experience_id`, which breaks ties; without ids, row numbers."""
    if "experience_id" not in table.column_names:
        return np.arange(table.num_rows)
    ranks = np.empty(table.num_rows, np.int64)
    ranks[pc.sort_indices(table["experience_id"]).to_numpy()] = np.arange(table.num_rows)
    return ranks


def place_in_group(group: Ints, *keys: npt.NDArray[np.generic]) -> Ints:
    """Place of each item among those of its group, 0-based, in ascending order of `keys`, first key first."""
    order = np.lexsort((*reversed(keys), group))
    ordered = group[order]
    starts = np.searchsorted(ordered, ordered)
    places = np.empty(len(group), np.int64)
    places[order] = np.arange(len(group)) - starts
    return places
