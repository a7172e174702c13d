"""TRL's config of one rank: its share of the lease, and what torch needs to know of the other ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from rft_data.core.errors import TrainingError
from trainers.policy.grpo_config import grpo_config
from trainers.policy.micro_batches import padded_rows
from trainers.ranks.ranks import Ranks


def ranked_config(
    output_dir: Path,
    steps: int,
    rows_per_step: int,
    options: Mapping[str, Any],
    seed: int,
    ranks: Ranks,
    deadline_s: float,
) -> GRPOConfig:
    """The real GRPOConfig of each rank.

    Where there are several, the full batch is `rows_per_step` rounded up to what can be dealt to them.

    Args: deadline_s: longest wait in a collective; on a CPU the one that `Ranks.join` was given counts.
    Raises: RecipeError as `grpo_config` does; TrainingError when torch sees other processes than `ranks`.
    """
    rows = rows_per_step
    if ranks.world > 1:
        accumulate = options.get("gradient_accumulation_steps", 1)
        rows = padded_rows(rows, micro_batches=accumulate, ranks=ranks.world) // ranks.world
        # Without a word from the recipe DDP looks for unused parameters in each backward pass.
        ours = {"ddp_timeout": math.ceil(deadline_s), "ddp_find_unused_parameters": False}
        options = {**ours, **options}
    config = grpo_config(output_dir, steps=steps, rows_per_step=rows, options=options, seed=seed)
    if config.world_size != ranks.world:
        raise TrainingError(
            f"torch sees {config.world_size} processes, but this trainer was given {ranks.world}; set "
            "placement.trainer.processes, and under torchrun start it with `rft run`."
        )
    return config
