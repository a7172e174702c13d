"""Space on the disk that a run would take."""

from __future__ import annotations

from rft_data.core.text import size_text
from rft_data.recipe.kinds import that_measures, that_only_explores, with_reinforcement
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.outlook.batches import counted
from rft_data.run.outlook.model_size import ModelSize
from rft_data.run.outlook.played import explored_disk, measured_disk, stored_bytes
from rft_data.weights.checkpoint import KEPT

_WIDTH, _STATE = 4, 12
"""Bytes for each parameter: in published weights, and in a checkpoint, which has two moments as well."""


def disk_line(recipe: RunRecipe, size: ModelSize, models: int) -> str:
    """Bytes of weights, checkpoints and rows, in words. `models`: how many a run measures."""
    if (explores := that_only_explores(recipe)) is not None:
        return explored_disk(explores)
    if (measures := that_measures(recipe)) is not None:
        return measured_disk(measures, models)
    parts = []
    if recipe.offline_stages:
        parts.append(_stages(len(recipe.offline_stages), size))
    training = with_reinforcement(recipe)
    if training is not None:
        stage = training.rl
        trained = size.parameters if stage.lora is None else size.adapter_parameters(stage.lora)
        kept = KEPT * trained * (_STATE + _WIDTH)
        parts.append(f"about {size_text(kept)} for {KEPT} checkpoints and {KEPT} versions")
        if training.explorer is not None:
            rows = 1000 * stage.groups_per_step * training.group_size
            parts.append(
                f"at most {size_text(rows * stored_bytes(training.explorer))} of rows per 1,000 steps, more "
                "where groups are dropped"
            )
    return "; ".join(parts)


def _stages(number: int, size: ModelSize) -> str:
    """Each stage leaves its model on the disk, and has checkpoints there while it trains."""
    models = size_text(number * size.parameters * _WIDTH)
    checkpoint = size_text(size.parameters * _STATE)
    return f"about {models} for {counted(number, 'trained model')}, {checkpoint} for a checkpoint of a stage"
