"""Numbers of a trainer's report that follow from the lease alone, without a model; under TRL's names."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.effective_reward import REWARD, SHAPED_REWARD, effective_rewards


def batch_metrics(table: pa.Table) -> dict[str, float]:
    """Figures over the rows that have a value, and the number of rows.

    `reward`, `reward_std` (of a sample) and `frac_reward_zero_std` (rows of groups whose rewards are all
    equal) are of the effective rewards. Where operators shaped some there are `raw_reward`, as stored, and
    `shaped_reward`, of the rows that they shaped. `completions/{mean,min,max}_length` are tokens after the
    prompt.
    """
    rewards = effective_rewards(table)
    length = pc.subtract(pc.list_value_length(table.column("token_ids")), table.column("prompt_length"))
    found = {
        "reward": pc.mean(rewards),
        "reward_std": pc.stddev(rewards, ddof=1),
        "frac_reward_zero_std": _share_without_spread(table.column("group_id"), rewards),
        "completions/mean_length": pc.mean(length),
        "completions/min_length": pc.min(length),
        "completions/max_length": pc.max(length),
        "rows": pa.scalar(table.num_rows),
    }
    if SHAPED_REWARD in table.column_names and table.column(SHAPED_REWARD).null_count < table.num_rows:
        found["raw_reward"] = pc.mean(table.column(REWARD))
        found[SHAPED_REWARD] = pc.mean(table.column(SHAPED_REWARD))
    if "masked" in table.column_names:
        found["masked"] = pc.mean(pc.fill_null(table.column("masked"), False).cast(pa.float64()))
    return {name: float(value.as_py()) for name, value in found.items() if value.as_py() is not None}


def _share_without_spread(group_ids: pa.ChunkedArray, rewards: pa.ChunkedArray) -> pa.Scalar:
    """Share of the rewarded rows that are in a group with one reward only; null where no row has a reward."""
    groups = pa.table({"group": group_ids, "reward": rewards}).drop_null().group_by("group")
    found = groups.aggregate([("reward", "min"), ("reward", "max"), ("reward", "count")])
    flat = pc.if_else(pc.equal(found["reward_min"], found["reward_max"]), found["reward_count"], 0)
    total = pc.sum(found["reward_count"])
    return pc.divide(pc.sum(flat).cast(pa.float64()), total)
