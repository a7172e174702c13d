"""`invalid_reward_filter`: drops rows whose reward cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from data_juicer.ops.base_op import OPERATORS, Filter

from ops.base import ArrowFilter, Judgement


@OPERATORS.register_module("invalid_reward_filter")
class InvalidRewardFilter(ArrowFilter, Filter):
    """Drops a row whose reward is null, NaN or infinite, or that has an `unscored_reason`.

    The other operators on rewards refuse (ValueError) what is not finite; this one, put first, takes it
    out with its reason. Each row is judged alone: groups may become ragged.
    """

    required_columns = ("reward",)
    optional_columns = ("unscored_reason",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """No arguments of its own."""
        super().__init__(*args, **kwargs)

    def judge(self, table: pa.Table) -> Judgement:
        """Keep finite rewards that nobody has taken back."""
        rewards = table["reward"].cast(pa.float64())
        values = rewards.to_numpy()
        causes = pa.nulls(table.num_rows, pa.string())
        if "unscored_reason" in table.column_names:
            causes = table["unscored_reason"].cast(pa.string())
        unscored = pc.fill_null(pc.greater(pc.utf8_length(causes), 0), False).to_numpy(zero_copy_only=False)
        keep = np.isfinite(values) & ~unscored
        dropped = np.flatnonzero(~keep)
        known = rewards.is_valid().to_numpy()[dropped]
        reasons = [
            f"reward {value:g}{' was not scored: ' + cause if cause else ' is not finite'}"
            if scored
            else f"no reward: {cause or 'not scored'}"
            for value, scored, cause in zip(
                values[dropped], known, causes.take(pa.array(dropped)).to_pylist(), strict=True
            )
        ]
        return Judgement(keep, reasons)
