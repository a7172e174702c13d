"""Data operators for reinforcement fine-tuning: real Data-Juicer operators with an Arrow core.

`OPERATOR_MODULES` is the visible list of ours; Data-Juicer's own text operators run beside them
(see `allowlist.py`). Importing this package does not import data_juicer.
"""

from __future__ import annotations

from collections.abc import Mapping

OPERATOR_MODULES: Mapping[str, str] = {
    "reward_range_filter": "ops.reward_range_filter",
    "reward_variance_filter": "ops.reward_variance_filter",
    "grpo_advantage_mapper": "ops.grpo_advantage_mapper",
}
"""Operator name, as recipes write it, to the module that registers it with Data-Juicer."""
