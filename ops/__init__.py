"""Data operators for reinforcement fine-tuning: real Data-Juicer operators with an Arrow core.

`OPERATOR_MODULES` lists ours. Recipes may name Data-Juicer's own text operators too (see
`runtime/allowlist.py`). Importing this package does not import data_juicer.
"""

from __future__ import annotations

from collections.abc import Mapping

OPERATOR_MODULES: Mapping[str, str] = {
    "reward_range_filter": "ops.rewards.reward_range_filter",
    "reward_variance_filter": "ops.rewards.reward_variance_filter",
    "grpo_advantage_mapper": "ops.advantages.grpo_advantage_mapper",
    "task_normalization_mapper": "ops.tasks.task_normalization_mapper",
    "task_semantic_deduplicator": "ops.tasks.task_semantic_deduplicator",
    "task_decontamination_filter": "ops.tasks.task_decontamination_filter",
    "task_difficulty_mapper": "ops.tasks.task_difficulty_mapper",
    "task_pass_rate_filter": "ops.tasks.task_pass_rate_filter",
    "task_priority_mapper": "ops.tasks.task_priority_mapper",
    "lancedb_write_mapper": "ops.lance.lancedb_write_mapper",
    "feedback_mapper": "ops.rewards.feedback_mapper",
    "invalid_reward_filter": "ops.rewards.invalid_reward_filter",
    "dynamic_sampling_filter": "ops.rewards.dynamic_sampling_filter",
    "truncation_mask_mapper": "ops.rewards.truncation_mask_mapper",
    "overlong_penalty_mapper": "ops.rewards.overlong_penalty_mapper",
    "length_shaping_mapper": "ops.rewards.length_shaping_mapper",
    "reward_shaping_mapper": "ops.rewards.reward_shaping_mapper",
    "pass_rate_mapper": "ops.rewards.pass_rate_mapper",
    "reward_advantage_mapper": "ops.advantages.reward_advantage_mapper",
    "rloo_advantage_mapper": "ops.advantages.rloo_advantage_mapper",
    "reinforce_baseline_advantage_mapper": "ops.advantages.reinforce_baseline_advantage_mapper",
    "remax_advantage_mapper": "ops.advantages.remax_advantage_mapper",
    "opmd_advantage_mapper": "ops.advantages.opmd_advantage_mapper",
    "asymre_advantage_mapper": "ops.advantages.asymre_advantage_mapper",
    "maxrl_advantage_mapper": "ops.advantages.maxrl_advantage_mapper",
    "pass_at_k_advantage_mapper": "ops.advantages.pass_at_k_advantage_mapper",
    "step_wise_advantage_mapper": "ops.advantages.step_wise_advantage_mapper",
    "gigpo_advantage_mapper": "ops.advantages.gigpo_advantage_mapper",
    "down_sampling_filter": "ops.rewards.down_sampling_filter",
    "best_of_n_filter": "ops.rewards.best_of_n_filter",
    "preference_pair_mapper": "ops.rewards.preference_pair_mapper",
    "format_reward_mapper": "ops.rewards.format_reward_mapper",
    "repetition_filter": "ops.similarity.repetition_filter",
    "rollout_near_dup_deduplicator": "ops.similarity.rollout_near_dup_deduplicator",
    "semantic_diversity_filter": "ops.similarity.semantic_diversity_filter",
    "llm_score_mapper": "ops.judge.llm_score_mapper",
}
"""Operator name, as recipes write it, to the module that registers it with Data-Juicer."""
