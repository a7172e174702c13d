"""Fields of TRL's configs that no recipe may set, and the reasons; no library is loaded for them."""

from __future__ import annotations

from collections.abc import Mapping


def refused(reason: str, *names: str) -> dict[str, str]:
    """One reason for several option names; tables of this form are the `owned` of `check_options`."""
    return dict.fromkeys(names, reason)


_TENSOR_PARALLEL = (
    "every process trains rows of its own, and TRL divides losses by the number of processes, while those "
    "of one tensor-parallel model would have to train the same rows (split it by placement.trainer.shard)"
)
LOADING_OWNED: Mapping[str, str] = {
    **refused("code from model repositories is never run", "trust_remote_code"),
    **refused(_TENSOR_PARALLEL, "tp_plan", "tp_size", "distributed_config", "device_mesh"),
    **refused("the run decides which process has which device", "device_map"),
}
"""Keys of `trl.model_init_kwargs` that no recipe may set, and the reason."""
OWNED: Mapping[str, str] = {
    **refused(_TENSOR_PARALLEL, "parallelism_config"),
    **refused("the run decides where its files are", "output_dir", "run_name", "project"),
    **refused("the recipe's own seed is used", "seed", "data_seed"),
    **refused(
        "the run writes, keeps and resumes checkpoints",
        *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "enable_jit_checkpoint"),
        *("load_best_model_at_end", "resume_from_checkpoint", "ignore_data_skip"),
        "restore_callback_states_from_checkpoint",
    ),
    **refused(
        "every step is logged, unfiltered", "logging_strategy", "logging_steps", "logging_nan_inf_filter"
    ),
    **refused("evaluation is the explorers' work", "do_eval", "eval_strategy", "eval_steps", "eval_on_start"),
    **refused(
        "nothing is uploaded",
        *("push_to_hub", "hub_token", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision"),
    ),
    **refused("trackers are named by monitor.trackers", "report_to"),
    **refused("code from model repositories is never run", "trust_remote_code"),
    **refused(
        "the batch size must stay what the recipe says", "auto_find_batch_size", "remove_unused_columns"
    ),
}
"""Fields of every TRL config that no recipe may set, and the reason."""
GRPO_OWNED: Mapping[str, str] = {
    **OWNED,
    **refused("the stage's steps decide how long to train", "max_steps", "num_train_epochs"),
    **refused(
        "the batch is groups_per_step x group_size rows; divide it with gradient_accumulation_steps",
        *("per_device_train_batch_size", "generation_batch_size", "steps_per_generation", "num_generations"),
    ),
    **refused(
        "sampling is the explorers' work (recipe section 'explorer')",
        *(
            "use_vllm",
            "vllm_mode",
            "vllm_model_impl",
            "vllm_enable_sleep_mode",
            "vllm_structured_outputs_regex",
        ),
        *(
            "vllm_server_base_url",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_timeout",
            "vllm_group_port",
        ),
        *("vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size"),
        *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "cache_implementation"),
        *(
            "chat_template_kwargs",
            "max_tool_calling_iterations",
            "num_generations_eval",
            "use_transformers_paged",
        ),
        *("use_transformers_continuous_batching", "transformers_continuous_batching_config"),
    ),
    **refused(
        "corrections for older weights belong to the stage's 'off_policy'",
        *("vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
        *("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max"),
        "vllm_importance_sampling_clip_min",
    ),
    **refused("each reward has its 'weight' in 'explorer.reward'", "reward_weights"),
    **refused(
        "rewards and advantages come from operators (recipe section 'experience_ops')",
        *("scale_rewards", "multi_objective_aggregation", "mask_truncated_completions"),
    ),
    **refused(
        "completions are in the buffer",
        *("log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts"),
        "log_completions_hub_repo",
    ),
    **refused("the selector decides the order of tasks", "shuffle_dataset"),
    **refused("the reference model would not survive a resume", "sync_ref_model"),
}
"""Fields of GRPOConfig that no recipe may set, and the reason."""
ONE_ITERATION = "must be 1: one lease is one optimizer step; to train rows again, take the sampler 'replay'"
"""The error for a `trl.num_iterations` that is another number."""
SFT_OWNED: Mapping[str, str] = {
    **OWNED,
    **refused(
        "rows come tokenised, with their own mask",
        *("dataset_text_field", "dataset_kwargs", "completion_only_loss", "assistant_only_loss"),
        *("chat_template_path", "eos_token", "pad_token"),
    ),
}
"""Fields of SFTConfig that no recipe may set, and the reason."""
PREFERENCE_OWNED: Mapping[str, str] = {
    **OWNED,
    **refused("pairs come tokenised, with their own mask", "dataset_num_proc", "pad_token"),
    **refused("pairs that are too long are left out, never cut", "truncation_mode"),
}
"""Fields that no recipe may set of the configs that train on preferences, and the reason."""
DPO_OWNED: Mapping[str, str] = {
    **PREFERENCE_OWNED,
    **refused("TRL has switched it off", "padding_free"),
}
KTO_OWNED: Mapping[str, str] = {
    **PREFERENCE_OWNED,
    **refused("rows are shuffled once, and batches keep their order", "train_sampling_strategy"),
}

OWNED_BY_STAGE: Mapping[str, Mapping[str, str]] = {
    "rl": GRPO_OWNED,
    "sft": SFT_OWNED,
    "dpo": DPO_OWNED,
    "kto": KTO_OWNED,
    "reward_model": PREFERENCE_OWNED,
}
"""Owned fields by the kind of a recipe's stage."""
