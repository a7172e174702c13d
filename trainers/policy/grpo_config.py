"""Which of GRPOConfig's fields a recipe may set, and the config of one run, or of one rank of its trainer.

The run decides the others (batch shape, length, checkpoints), or they would have no effect: in this project
TRL neither generates nor scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from trl import GRPOConfig

from rft_data.core.errors import RecipeError, TrainingError
from trainers.models.options import OWNED, accumulation_steps, build_config, check_options, refused
from trainers.policy.micro_batches import padded_rows
from trainers.policy.plan import GrpoPlan
from trainers.ranks.ranks import Ranks

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
        *(
            "vllm_importance_sampling_correction",
            "vllm_importance_sampling_mode",
            "vllm_importance_sampling_cap",
        ),
        *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
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
        "rewards and advantages come from operators (recipe section 'experience_ops')",
        *("scale_rewards", "reward_weights", "multi_objective_aggregation", "mask_truncated_completions"),
    ),
    **refused(
        "completions are in the buffer",
        *("log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts"),
        *("log_completions_hub_repo", "shuffle_dataset"),
    ),
    **refused("the reference model would not survive a resume", "sync_ref_model"),
}
"""Fields of GRPOConfig that no recipe may set, and the reason."""


def grpo_config(
    output_dir: Path, *, steps: int, rows_per_step: int, options: Mapping[str, object], seed: int
) -> GRPOConfig:
    """The real GRPOConfig for one lease of `rows_per_step` rows per optimizer step.

    Raises: RecipeError when an option is unknown, may not be set by a recipe, or does not fit the batch.
    """
    check_options(options, GRPOConfig, GRPO_OWNED)
    if options.get("num_iterations", 1) != 1:
        raise RecipeError(
            f"trl: num_iterations is {options['num_iterations']}, must be 1: one lease is one optimizer "
            "step; to use rows again, set the sampler's reuse."
        )
    accumulate = accumulation_steps(options)
    if rows_per_step % 2 or rows_per_step % accumulate:
        raise RecipeError(
            f"groups_per_step x group_size is {rows_per_step}; it must be even (TRL's rule) and divisible by "
            f"trl.gradient_accumulation_steps ({accumulate})."
        )
    fixed = {
        "max_steps": steps,
        "per_device_train_batch_size": rows_per_step // accumulate,
        # TRL asks for at least two completions a prompt. Our groups come with the lease, so 2 always fits.
        "num_generations": 2,
        "seed": seed,
        "ignore_data_skip": True,
    }
    return build_config(GRPOConfig, output_dir, options, fixed)


def ranked_config(plan: GrpoPlan, ranks: Ranks) -> GRPOConfig:
    """The real GRPOConfig of each rank.

    With several ranks the full batch is `rows_per_step`, rounded up to a number that can be dealt to them.
    The plan's deadline bounds each wait in a collective; on a CPU the deadline given to `Ranks.join` does.

    Raises: RecipeError as `grpo_config` does; TrainingError when torch sees other processes than `ranks`.
    """
    rows, options = plan.rows_per_step, plan.options
    if ranks.world > 1:
        accumulate = accumulation_steps(options)
        rows = padded_rows(rows, micro_batches=accumulate, ranks=ranks.world) // ranks.world
        # By default DDP would look for unused parameters in each backward pass.
        ours = {"ddp_timeout": math.ceil(plan.limits.deadline_s), "ddp_find_unused_parameters": False}
        options = {**ours, **options}
    config = grpo_config(
        plan.output_dir, steps=plan.steps, rows_per_step=rows, options=options, seed=plan.seed
    )
    if config.world_size != ranks.world:
        raise TrainingError(
            f"torch sees {config.world_size} processes, but this trainer was given {ranks.world}; set "
            "placement.trainer.processes, and under torchrun start it with `rft run`."
        )
    return config
