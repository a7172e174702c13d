"""`preference_pair_mapper`: makes pairs of a better and a worse answer of one group."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowMapper, append_or_replace
from ops.grouping import Groups
from ops.rewards.effective import effective_rewards
from ops.rollouts import LENGTH_COLUMNS, answer_lengths, id_ranks, place_in_group

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rule = Literal["best_vs_worst", "all"]


@OPERATORS.register_module("preference_pair_mapper")
class PreferencePairMapper(ArrowMapper, Pipeline):
    """Writes `preferred_over`, the experience_ids of the rows each row is preferred over, to the chosen rows.

    best_vs_worst: the highest reward of a group against the lowest. all: every two rows of it, widest
    margin first, at most `max_pairs` a group. A pair needs a difference of reward above `margin` and,
    with `max_length_ratio`, answers of which the longer is at most that many times the shorter (sampled
    tokens, or characters where not all are known): else preference learning learns length
    (arXiv:2403.19159). Equal rewards: shorter, then first by id, is better; and longer, then last, worse.
    r is `shaped_reward` where set, else `reward`; rows without one, and later turns of a step-wise
    workflow (other prompts), take no part. Rows that are preferred over none, groups of one, and groups
    of equal rewards get nulls. `rft_data.exchange.pairs.store_pairs` makes stored pairs of it.
    Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "experience_id", "reward")
    optional_columns = ("shaped_reward", "turn", "completion_text", "preferred_over", *LENGTH_COLUMNS)

    def __init__(
        self,
        pairs: Rule = "best_vs_worst",
        margin: float = 0.0,
        max_length_ratio: float | None = None,
        max_pairs: int = 8,
        *args: object,
        **kwargs: object,
    ) -> None:
        """margin: in units of reward (>= 0); max_length_ratio: >= 1; max_pairs: of a group, for `all`."""
        super().__init__(*args, **kwargs)
        if pairs not in get_args(Rule) or not margin >= 0 or max_pairs < 1:
            raise ValueError(
                f"pairs is {pairs!r}, margin {margin} and max_pairs {max_pairs}; wanted pairs "
                f"{' or '.join(get_args(Rule))}, margin >= 0 and max_pairs >= 1"
            )
        if max_length_ratio is not None and not max_length_ratio >= 1:
            raise ValueError(f"max_length_ratio is {max_length_ratio}; wanted a number >= 1, or null")
        self.pairs = pairs
        self.margin = margin
        self.max_length_ratio = np.inf if max_length_ratio is None else max_length_ratio
        self.max_pairs = max_pairs

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the list column."""
        groups = Groups.of(table, GROUP_KEY)
        rewards = effective_rewards(table)
        takes_part = ~np.isnan(rewards)
        if "turn" in table.column_names:
            takes_part &= table["turn"].to_numpy() == 0
        lengths = answer_lengths(table, groups)
        ranks = id_ranks(table)
        rows = np.flatnonzero(takes_part)
        rows = rows[np.lexsort((ranks[rows], lengths[rows], -rewards[rows], groups.codes[rows]))]
        chosen, rejected = self._candidates(rows, groups.codes[rows])
        difference = rewards[chosen] - rewards[rejected]
        fine = (difference > self.margin) & self._alike(lengths[chosen], lengths[rejected])
        chosen, rejected, difference = chosen[fine], rejected[fine], difference[fine]
        rank = place_in_group(groups.codes[chosen], -difference, ranks[chosen], ranks[rejected])
        few = rank < self.max_pairs
        return _with_pairs(table, chosen[few], rejected[few])

    def _candidates(self, rows: Ints, codes: Ints) -> tuple[Ints, Ints]:
        """(chosen, rejected) row numbers of all possible pairs; `rows`: by group, best first."""
        starts = np.searchsorted(codes, codes)
        ends = np.searchsorted(codes, codes, side="right")
        if self.pairs == "best_vs_worst":
            first = np.unique(starts)
            return rows[first], rows[ends[first] - 1]
        parts = [(rows[:0], rows[:0])]
        for apart in range(1, int((ends - starts).max(initial=0))):
            better = np.flatnonzero(np.arange(len(rows)) + apart < ends)
            parts.append((rows[better], rows[better + apart]))
        chosen, rejected = zip(*parts, strict=True)
        return np.concatenate(chosen), np.concatenate(rejected)

    def _alike(self, one: Array, other: Array) -> npt.NDArray[np.bool_]:
        """Whether the lengths of two answers are within the ratio; an empty one only fits an empty one."""
        if self.max_length_ratio == np.inf:
            return np.ones(len(one), np.bool_)
        shorter, longer = np.minimum(one, other), np.maximum(one, other)
        alike: npt.NDArray[np.bool_] = longer <= self.max_length_ratio * shorter
        return alike


def _with_pairs(table: pa.Table, chosen: Ints, rejected: Ints) -> pa.Table:
    """`preferred_over`: ids of the rejected rows in row order, null for a row that was never chosen."""
    order = np.lexsort((rejected, chosen))
    counts = np.bincount(chosen, minlength=table.num_rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    ids = table["experience_id"].take(pa.array(rejected[order])).combine_chunks()
    lists = pa.ListArray.from_arrays(offsets, ids, mask=pa.array(counts == 0))
    return append_or_replace(table, "preferred_over", lists)
