"""`grpo_advantage_mapper`: the group-relative advantage of GRPO and Dr. GRPO."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowMapper, append_or_replace, floats
from ops.grouping import Groups


@OPERATORS.register_module("grpo_advantage_mapper")
class GrpoAdvantageMapper(ArrowMapper, Pipeline):
    """Writes `advantage`, a list of one float32 for each row.

    scale="group": (r - mean) / (std + eps), std with ddof=1 (GRPO, arXiv:2402.03300, as in TRL).
    scale="none": r - mean (Dr. GRPO, arXiv:2503.20783).
    r is `shaped_reward` where that is set, else `reward`. Mean and std are over the group's known
    rewards; a row without one gets a null advantage (put reward_range_filter before). A group of
    one, or of equal rewards, gets 0.0. Raises ValueError for a reward that is not finite.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = ("shaped_reward", "advantage")

    def __init__(
        self, scale: Literal["group", "none"] = "group", eps: float = 1e-4, *args: Any, **kwargs: Any
    ) -> None:
        """scale: divide by the group's std or not; eps: added to the std, in units of reward (>= 0)."""
        super().__init__(*args, **kwargs)
        if scale not in ("group", "none") or not eps >= 0:
            raise ValueError(f"scale is {scale!r} and eps {eps}; wanted scale 'group' or 'none' and eps >= 0")
        self.scale = scale
        self.eps = eps

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the advantage, computed in fp64."""
        rewards = floats(table, "reward")
        if "shaped_reward" in table.column_names:
            shaped = floats(table, "shaped_reward")
            rewards = np.where(np.isnan(shaped), rewards, shaped)
        groups = Groups.of(table, GROUP_KEY)
        moments = groups.moments(rewards)
        std = moments.std(ddof=1)
        divisor = std + self.eps if self.scale == "group" else np.ones_like(std)
        varies = (std > 0)[groups.codes]
        safe = np.where(std > 0, divisor, 1.0)[groups.codes]
        advantage = np.where(varies, (rewards - moments.mean[groups.codes]) / safe, 0.0)
        known = ~np.isnan(rewards)
        offsets = np.append(np.arange(len(rewards)), len(rewards)).astype(np.int32)
        lists = pa.ListArray.from_arrays(offsets, pa.array(advantage, pa.float32()), mask=pa.array(~known))
        return append_or_replace(table, "advantage", lists)
