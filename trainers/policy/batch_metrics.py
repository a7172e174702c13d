"""Numbers of a trainer's report that follow from the lease alone, without a model."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.effective_reward import REWARD, SHAPED_REWARD, effective_rewards


def batch_metrics(table: pa.Table) -> dict[str, float]:
    """Means over the rows that have a value, and the number of rows.

    `reward` is the effective one. Where operators shaped some there are `raw_reward`, as stored, and
    `shaped_reward`, of the rows that they shaped.
    """
    means = {"reward": pc.mean(effective_rewards(table)).as_py()}
    if SHAPED_REWARD in table.column_names and table.column(SHAPED_REWARD).null_count < table.num_rows:
        means["raw_reward"] = pc.mean(table.column(REWARD)).as_py()
        means[SHAPED_REWARD] = pc.mean(table.column(SHAPED_REWARD)).as_py()
    if "masked" in table.column_names:
        means["masked"] = pc.mean(pc.fill_null(table.column("masked"), False).cast(pa.float64())).as_py()
    length = pc.subtract(pc.list_value_length(table.column("token_ids")), table.column("prompt_length"))
    return {
        **{name: float(mean) for name, mean in means.items() if mean is not None},
        "completion_tokens": float(pc.mean(length).as_py()),
        "rows": float(table.num_rows),
    }
