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
from rft_data.core.model_folder import takes_images
from trainers.models.loss_types import GRPO_LOSSES, check_loss
from trainers.models.options import accumulation_steps, build_config, check_options, padded_rows
from trainers.models.owned import GRPO_OWNED, ONE_ITERATION
from trainers.policy.plan import GrpoPlan
from trainers.ranks.ranks import Ranks


def grpo_config(
    output_dir: Path, *, steps: int, rows_per_step: int, options: Mapping[str, object], seed: int
) -> GRPOConfig:
    """The real GRPOConfig for one lease of `rows_per_step` rows per optimizer step.

    Raises: RecipeError when an option is unknown, may not be set by a recipe, or does not fit the batch.
    """
    check_options(options, GRPOConfig, GRPO_OWNED)
    check_loss("rl", options.get("loss_type", GRPO_LOSSES[0]))
    if options.get("num_iterations", 1) != 1:
        raise RecipeError(f"trl: num_iterations is {options['num_iterations']}, {ONE_ITERATION}.")
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

    Raises: RecipeError as `grpo_config` does, and for a model that cannot be split over ranks; TrainingError
        when torch sees other processes than `ranks`.
    """
    rows, options = plan.rows_per_step, plan.options
    if plan.limits.shard is not None and takes_images(plan.model_path):
        raise RecipeError(
            f"placement.trainer.shard is '{plan.limits.shard}', and the model in '{plan.model_path}' looks "
            "at images: ranks whose rows show none would not gather its vision layers, for which the others "
            "wait. Remove 'shard'."
        )
    if ranks.world > 1:
        accumulate = accumulation_steps(options)
        rows = padded_rows(rows, micro_batches=accumulate, ranks=ranks.world) // ranks.world
        # By default DDP would look for unused parameters in each backward pass. A vision tower has some: the
        # layers after the one that is read, and all of it where a micro-batch shows no image.
        unused = takes_images(plan.model_path)
        ours = {"ddp_timeout": math.ceil(plan.limits.deadline_s), "ddp_find_unused_parameters": unused}
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
