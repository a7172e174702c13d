"""Numbers of a trainer's report that follow from the lease alone, without a model."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def batch_metrics(table: pa.Table) -> dict[str, float]:
    """Means over the rows that have a value, and the number of rows."""
    means = {
        name: pc.mean(table.column(name)).as_py()
        for name in ("reward", "shaped_reward")
        if name in table.schema.names
    }
    if "masked" in table.column_names:
        means["masked"] = pc.mean(pc.fill_null(table.column("masked"), False).cast(pa.float64())).as_py()
    length = pc.subtract(pc.list_value_length(table.column("token_ids")), table.column("prompt_length"))
    return {
        **{name: float(mean) for name, mean in means.items() if mean is not None},
        "completion_tokens": float(pc.mean(length).as_py()),
        "rows": float(table.num_rows),
    }
