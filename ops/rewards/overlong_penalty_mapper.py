"""`overlong_penalty_mapper`: the soft overlong punishment of DAPO."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper
from ops.rewards.effective import effective_rewards, with_shaped_reward
from ops.rollouts import LENGTH_COLUMNS, completion_tokens


@OPERATORS.register_module("overlong_penalty_mapper")
class OverlongPenaltyMapper(ArrowMapper, Mapper):
    """Writes `shaped_reward` = r + factor * p(L), L the sampled tokens (DAPO, arXiv:2503.14476, equation 13).

    p(L) = 0 up to max_tokens - cache_tokens, then falls linearly to -1 at max_tokens, and is -1 beyond.
    r is `shaped_reward` where that is set, else `reward`; a row without either keeps a null. An empty
    completion has length 0. Raises ValueError for a reward that is not finite, and for a row with a
    reward but neither `action_mask` nor `token_ids`, whose length is unknown.
    """

    required_columns = ("reward",)
    optional_columns = ("shaped_reward", *LENGTH_COLUMNS)

    def __init__(
        self, max_tokens: int = 0, cache_tokens: int = 0, factor: float = 1.0, *args: object, **kwargs: object
    ) -> None:
        """max_tokens: L_max; cache_tokens: L_cache, the slope; factor: the full penalty (> 0)."""
        super().__init__(*args, **kwargs)
        if not (1 <= cache_tokens <= max_tokens and factor > 0):
            raise ValueError(
                f"max_tokens is {max_tokens}, cache_tokens {cache_tokens} and factor {factor}; "
                "wanted 1 <= cache_tokens <= max_tokens and factor > 0"
            )
        self.max_tokens = max_tokens
        self.cache_tokens = cache_tokens
        self.factor = factor

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the penalty, computed in fp64."""
        rewards = effective_rewards(table)
        lengths = completion_tokens(table)
        if (np.isnan(lengths) & ~np.isnan(rewards)).any():
            raise ValueError("a row has a reward but no tokens; its length is unknown: drop such rows before")
        penalty = np.clip((self.max_tokens - self.cache_tokens - lengths) / self.cache_tokens, -1.0, 0.0)
        return with_shaped_reward(table, rewards + self.factor * penalty)
