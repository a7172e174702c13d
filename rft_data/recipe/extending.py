"""A run that goes on past its end, by more optimizer steps of its last stage or more groups to explore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rft_data.core.errors import ResumeError
from rft_data.core.words import Mode
from rft_data.recipe.modes import TrainingRecipe
from rft_data.recipe.recipe import RunRecipe

_SCHEDULES = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules of transformers that do not read how many steps a training has."""
_TRLS_OWN = "linear"


@dataclass(frozen=True, slots=True)
class Length:
    """How long the run of a saved recipe is."""

    key: str
    """`steps` of its last stage, or `groups`."""
    number: int


def run_length(tree: Mapping[str, Any]) -> Length | None:
    """The length of a saved recipe's run; None where it has none that could be more."""
    if tree.get("mode") == Mode.EXPLORE:
        key, number = "groups", tree.get("groups")
    else:
        key, number = "steps", (tree.get("stages") or [{}])[-1].get("steps")
    return Length(key, number) if isinstance(number, int) else None


def with_length(tree: Mapping[str, Any], length: Length) -> dict[str, Any]:
    """The saved recipe of a run of that length."""
    if length.key == "groups":
        return {**tree, "groups": length.number}
    *before, last = tree["stages"]
    return {**tree, "stages": [*before, {**last, "steps": length.number}]}


def same_but_longer(began: Mapping[str, object], recipe: RunRecipe) -> Mapping[str, object]:
    """The recipe that a run began with, with the length of `recipe`, if that is more; else as it was."""
    held, wanted = run_length(began), run_length(recipe.saved())
    if held is None or wanted is None or held.key != wanted.key or wanted.number <= held.number:
        return began
    return with_length(began, wanted)


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
