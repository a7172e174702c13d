"""`down_sampling_filter`: keeps the most informative rollouts of each group (PODS)."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.grouping import Groups
from ops.rewards.effective import effective_rewards
from ops.rollouts import ROLLOUT_COLUMNS, Rollouts, id_ranks, place_in_group

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Rule = Literal["max_variance", "random"]


@OPERATORS.register_module("down_sampling_filter")
class DownSamplingFilter(ArrowFilter, Pipeline):
    """Keeps at most `size` rollouts of each group; groups of `size` or fewer stay whole.

    max_variance: those whose rewards vary most: the i lowest and the size - i highest, for the best i
    (PODS, arXiv:2504.13818). Rollouts without a reward go first.
    random: drawn by `seed` and `experience_id`, whatever the order of the rows and whichever rows are there.
    A rollout's reward is `shaped_reward`, else `reward`, of its last turn; all its turns stay or go.
    Ties are broken by `experience_id`. Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ("shaped_reward", "experience_id", *ROLLOUT_COLUMNS)

    def __init__(
        self, size: int = 0, rule: Rule = "max_variance", seed: int = 0, *args: object, **kwargs: object
    ) -> None:
        """size: rollouts to keep of each group (>= 1); seed: of `random`."""
        super().__init__(*args, **kwargs)
        if size < 1 or rule not in get_args(Rule):
            raise ValueError(
                f"size is {size} and rule {rule!r}; wanted size >= 1, {' or '.join(get_args(Rule))}"
            )
        self.size = size
        self.rule = rule
        self.seed = seed

    def judge(self, table: pa.Table) -> Judgement:
        """Choose rollouts, group by group."""
        groups = Groups.of(table, GROUP_KEY)
        rollouts = Rollouts.of(table, groups)
        rewards = effective_rewards(table)[rollouts.last]
        members = np.bincount(rollouts.group, minlength=groups.count)
        if self.rule == "random":
            place = place_in_group(rollouts.group, self._random_keys(table, rollouts.last))
            chosen = place < self.size
        else:
            ranks = id_ranks(table)[rollouts.last]
            chosen = _most_varied(rewards, ranks, Groups(rollouts.group, groups.count), self.size)
        keep = (chosen | (members <= self.size)[rollouts.group])[rollouts.codes]
        reasons = [
            f"not among the {self.size} of {members[code]} rollouts kept ({self.rule})"
            for code in groups.codes[~keep]
        ]
        return Judgement(keep, reasons)

    def _random_keys(self, table: pa.Table, rows: Ints) -> npt.NDArray[np.generic]:
        """64 bits for each row, from seed and id."""
        if "experience_id" not in table.column_names:
            raise ValueError("rule 'random' needs column 'experience_id', by which it draws")
        key = self.seed.to_bytes(8, "little", signed=True)
        ids = table["experience_id"].take(pa.array(rows)).to_pylist()
        digests = [hashlib.blake2b(name.encode(), digest_size=8, key=key).digest() for name in ids]
        return np.frombuffer(b"".join(digests), dtype="<u8")


def _most_varied(rewards: Array, ranks: Ints, groups: Groups, size: int) -> Bools:
    """The `size` known rewards of each group with the largest variance; all of a group with no more.

    In order of reward, the sums over the i lowest and size - i highest are differences of running sums;
    rewards are standardised within their group first, so that no group costs another one precision.
    """
    known = ~np.isnan(rewards)
    moments = groups.moments(rewards)
    std = moments.std(ddof=0)
    scale = np.where(std > 0, std, 1.0)[groups.codes]
    centred = np.where(known, (rewards - moments.mean[groups.codes]) / scale, np.inf)
    order = np.lexsort((ranks, centred, groups.codes))
    order = order[known[order]]
    values = centred[order]
    first = np.cumsum(moments.size) - moments.size
    last = first + moments.size
    sums = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values * values)])
    best = np.full(groups.count, -np.inf)
    lowest = np.zeros(groups.count, np.int64)
    for low in range(size + 1):
        cut, resume = np.minimum(first + low, last), np.maximum(last - (size - low), first)
        total = sums[cut] - sums[first] + sums[last] - sums[resume]
        square = squares[cut] - squares[first] + squares[last] - squares[resume]
        variance = square - total * total / size
        better = variance > best + 1e-9 * moments.size
        best = np.where(better, variance, best)
        lowest = np.where(better, low, lowest)
    place = np.zeros(len(rewards), np.int64)
    place[order] = np.arange(len(order)) - first[groups.codes[order]]
    below, above = lowest[groups.codes], (moments.size - (size - lowest))[groups.codes]
    return known & ((place < below) | (place >= above))
