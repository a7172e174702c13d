"""A run that goes on past its last step: whether it would have come there in one go, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rft_data.core.errors import ResumeError
from rft_data.recipe.modes import TrainingRecipe
from rft_data.recipe.recipe import RunRecipe

_SCHEDULES = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Those of transformers that do not read how many steps a training has."""
_TRLS_OWN = "linear"


def same_but_longer(began: Mapping[str, Any], recipe: RunRecipe) -> Mapping[str, Any]:
    """The recipe that a run began with, with the steps of `recipe`, if these are more; else as it was."""
    stages = began.get("stages")
    if not isinstance(recipe, TrainingRecipe) or began.get("mode") != recipe.mode or not stages:
        return began
    steps = stages[-1].get("steps")
    if not isinstance(steps, int) or recipe.rl.steps <= steps:
        return began
    return {**began, "stages": [*stages[:-1], {**stages[-1], "steps": recipe.rl.steps}]}


def check_more_steps(began: Mapping[str, Any], recipe: RunRecipe) -> None:
    """Raises: ResumeError when the steps already taken would have been others in a longer run."""
    if not isinstance(recipe, TrainingRecipe):
        return
    steps, options = began["stages"][-1]["steps"], recipe.rl.trl
    schedule = options.get("lr_scheduler_type", _TRLS_OWN)
    warmup: Any = options.get("warmup_steps", 0)
    if (
        schedule in _SCHEDULES
        and not options.get("warmup_ratio")
        and not (isinstance(warmup, float) and 0 < warmup < 1)
    ):
        return
    what = "its warm-up is a share of all steps" if schedule in _SCHEDULES else f"it is '{schedule}'"
    raise ResumeError(
        f"run '{recipe.name}' cannot go on from {steps} to {recipe.rl.steps} steps: its learning rate "
        f"depends on the number of steps ({what}), so that a longer run would have had "
        "another from the start. A run that may take more steps has trl: {lr_scheduler_type: constant}, or "
        "constant_with_warmup with "
        "warmup_steps; to train on all the same, start a run of another name whose model.path is the folder "
        "of this one's trained model (in its summary.json)."
    )
