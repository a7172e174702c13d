"""An operator: a completion of too many words loses some of its reward."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace, floats


@OPERATORS.register_module("wordiness_mapper")
class Wordiness(ArrowMapper, Mapper):
    """shaped_reward = reward - cost * max(0, words - free); without a reward there is no shaped one."""

    required_columns = ("reward", "completion_text")

    def __init__(self, free: int = 20, cost: float = 0.01, **kwargs: object) -> None:
        """free: words that cost nothing. Raises: ValueError, which `rft recipe validate --deep` shows."""
        super().__init__(**kwargs)
        if cost < 0:
            raise ValueError(f"cost is {cost}; wanted 0 or more")
        self.free, self.cost = free, cost

    def process_table(self, table: pa.Table) -> pa.Table:
        """N rows in, the same N rows out, with a column more."""
        words = pc.list_value_length(pc.utf8_split_whitespace(table["completion_text"])).to_numpy()
        shaped = floats(table, "reward") - self.cost * np.maximum(0, words - self.free)
        column = pa.array(shaped, pa.float32(), from_pandas=True)  # NaN, a missing reward, becomes null
        return append_or_replace(table, "shaped_reward", column)
