"""Defaults of operators are a promise to recipes that leave an argument out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ops import OPERATOR_MODULES
from ops.runtime.hygiene import registry

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "reward_range_filter": {"min_reward": None, "max_reward": None},
    "reward_variance_filter": {"min_std": 1e-06},
    "grpo_advantage_mapper": {"scale": "group", "eps": 0.0001},
    "task_normalization_mapper": {"form": "NFC"},
    "task_semantic_deduplicator": {"model": "", "threshold": 0.95},
    "task_decontamination_filter": {
        "n": 13, "files": None, "prompt": "question", "reference": "answer", "max_matches": 10,
    },
    "task_difficulty_mapper": {"window": None, "prior_weight": 4.0},
    "task_pass_rate_filter": {
        "min_pass_rate": 0.0, "max_pass_rate": 1.0, "min_rollouts": 16, "window": None,
    },
    "task_priority_mapper": {"weights": None},
    "lancedb_write_mapper": {"uri": "", "table": "rows", "mode": "create"},
    "feedback_mapper": {"key": "reward", "how": "last", "into": "reward", "replace": False, "buffer": None},
    "invalid_reward_filter": {},
    "dynamic_sampling_filter": {"correct": 1.0, "min_accuracy": 0.0, "max_accuracy": 1.0},
    "truncation_mask_mapper": {},
    "overlong_penalty_mapper": {"max_tokens": 0, "cache_tokens": 0, "factor": 1.0},
    "length_shaping_mapper": {"rule": "kimi", "weight": 0.0, "correct": 1.0},
    "reward_shaping_mapper": {"weights": None, "normalize": "none", "clip": None},
    "pass_rate_mapper": {"correct": 1.0},
    "reward_advantage_mapper": {},
    "rloo_advantage_mapper": {},
    "reinforce_baseline_advantage_mapper": {"eps": 1e-08},
    "remax_advantage_mapper": {"baseline_member": 0},
    "opmd_advantage_mapper": {"tau": 1.0},
    "asymre_advantage_mapper": {"baseline_shift": -0.1},
    "maxrl_advantage_mapper": {"correct": 1.0},
    "pass_at_k_advantage_mapper": {"k": 0, "correct": 1.0},
    "step_wise_advantage_mapper": {"scale": "group", "eps": 0.0001},
    "gigpo_advantage_mapper": {"omega": 1.0, "gamma": 0.95, "scale": "group", "eps": 0.0001},
    "down_sampling_filter": {"size": 0, "rule": "max_variance", "seed": 0},
    "best_of_n_filter": {"k": 1, "min_reward": None},
    "preference_pair_mapper": {
        "pairs": "best_vs_worst", "margin": 0.0, "max_length_ratio": None, "max_pairs": 8,
    },
    "format_reward_mapper": {"pattern": None, "tags": (), "boxed": False, "weight": 0.0},
    "repetition_filter": {"n": 4, "max_share": 0.5, "column": "completion_text"},
    "rollout_near_dup_deduplicator": {
        "threshold": 0.8, "n": 3, "scope": "group", "keep": "first", "across_tasks": False,
        "column": "completion_text", "buffer": None,
    },
    "semantic_diversity_filter": {
        "model": "", "max_similarity": None, "keep_n": None, "scope": "group", "keep": "first",
        "across_tasks": False, "buffer": None,
    },
    "llm_score_mapper": {
        "base_url": "", "model": "", "score": None, "shape": "none", "weight": 1.0,
        "on_failure": "quarantine", "sampling": None, "limits": None, "cache": None, "api_key_env": None,
        "buffer": None,
    },
}  # fmt: skip
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "reward_range_filter": {"min_reward": 0.0},
    "task_priority_mapper": {"weights": {"pass_rate": 1.0}},
    "overlong_penalty_mapper": {"max_tokens": 8, "cache_tokens": 4},
    "length_shaping_mapper": {"weight": 0.5},
    "reward_shaping_mapper": {"weights": {"exact": 1.0}},
    "pass_at_k_advantage_mapper": {"k": 2},
    "down_sampling_filter": {"size": 2},
    "format_reward_mapper": {"boxed": True, "weight": 0.5},
    "llm_score_mapper": {"base_url": "http://localhost:1", "model": "judge"},
}
"""What an operator refuses to be without."""
MODELS = {"task_semantic_deduplicator", "semantic_diversity_filter", "lancedb_write_mapper"}
"""They open a model or a database when they are made; their own tests make them."""


def test_every_operator_has_its_defaults_here() -> None:
    assert DEFAULTS.keys() == OPERATOR_MODULES.keys()


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_recipe_that_leaves_an_argument_out_gets_its_default(name: str) -> None:
    parameters = inspect.signature(registry().modules[name].__init__).parameters
    found = {key: parameter.default for key, parameter in parameters.items()}
    for key in ("self", "args", "kwargs", "template"):
        found.pop(key, None)
    assert found == DEFAULTS[name]


@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() - MODELS))
def test_data_juicers_own_arguments_reach_its_base_class(name: str, tmp_path: Path) -> None:
    operator = registry().modules[name](**NEEDED.get(name, {}), batch_size=7, text_key="own_text")
    assert (operator.batch_size, operator.text_key) == (7, "own_text")
