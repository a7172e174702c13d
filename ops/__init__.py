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
    "task_normalization_mapper": "ops.task_normalization_mapper",
    "task_semantic_deduplicator": "ops.task_semantic_deduplicator",
    "task_decontamination_filter": "ops.task_decontamination_filter",
    "task_difficulty_mapper": "ops.task_difficulty_mapper",
    "task_pass_rate_filter": "ops.task_pass_rate_filter",
    "task_priority_mapper": "ops.task_priority_mapper",
    "lancedb_write_mapper": "ops.lancedb_write_mapper",
    "feedback_mapper": "ops.feedback_mapper",
    "invalid_reward_filter": "ops.invalid_reward_filter",
    "dynamic_sampling_filter": "ops.dynamic_sampling_filter",
    "truncation_mask_mapper": "ops.truncation_mask_mapper",
    "overlong_penalty_mapper": "ops.overlong_penalty_mapper",
    "length_shaping_mapper": "ops.length_shaping_mapper",
    "reward_shaping_mapper": "ops.reward_shaping_mapper",
    "pass_rate_mapper": "ops.pass_rate_mapper",
    "reward_advantage_mapper": "ops.reward_advantage_mapper",
    "rloo_advantage_mapper": "ops.rloo_advantage_mapper",
    "reinforce_baseline_advantage_mapper": "ops.reinforce_baseline_advantage_mapper",
    "remax_advantage_mapper": "ops.remax_advantage_mapper",
    "opmd_advantage_mapper": "ops.opmd_advantage_mapper",
    "asymre_advantage_mapper": "ops.asymre_advantage_mapper",
    "maxrl_advantage_mapper": "ops.maxrl_advantage_mapper",
    "pass_at_k_advantage_mapper": "ops.pass_at_k_advantage_mapper",
    "step_wise_advantage_mapper": "ops.step_wise_advantage_mapper",
    "gigpo_advantage_mapper": "ops.gigpo_advantage_mapper",
    "down_sampling_filter": "ops.down_sampling_filter",
    "best_of_n_filter": "ops.best_of_n_filter",
    "preference_pair_mapper": "ops.preference_pair_mapper",
    "format_reward_mapper": "ops.format_reward_mapper",
    "repetition_filter": "ops.repetition_filter",
    "rollout_near_dup_deduplicator": "ops.rollout_near_dup_deduplicator",
    "semantic_diversity_filter": "ops.semantic_diversity_filter",
    "llm_score_mapper": "ops.llm_score_mapper",
}
"""Operator name, as recipes write it, to the module that registers it with Data-Juicer."""
