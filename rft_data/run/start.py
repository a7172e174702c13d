"""A recipe to its run, by mode."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from rft_data.recipe.modes import (
    EvalRecipe,
    ExploreRecipe,
    OfflineRecipe,
    OnlineRecipe,
    RunRecipe,
    TrainRecipe,
)
from rft_data.run import build
from rft_data.run.control import RunControl
from rft_data.run.evaluate import EvalRun
from rft_data.run.explore import ExploreRun
from rft_data.run.folder import Run
from rft_data.run.offline import OfflineRun
from rft_data.run.online import OnlineRun
from rft_data.run.train import TrainRun

log = logging.getLogger(__name__)


class ModeRun(Protocol):
    """One start of a run; made when everything has been checked."""

    def execute(self, control: RunControl) -> dict[str, Any]:
        """Do what is not done yet; returns the summary."""
        ...


def run_recipe(recipe: RunRecipe) -> dict[str, Any]:
    """Run what is not done yet and return the summary.

    Raises: RecipeError and other RftErrors; nothing is recorded before the recipe has been checked.
    """
    build.prepare_process()
    run = Run(recipe)
    try:
        if run.summary is None:
            started = _of_mode(run, recipe)
            with RunControl(run.directory, attempt=run.attempt) as control:
                run.finish(started.execute(control))
        else:
            log.info("this run is complete; start over with --fresh")
        summary: dict[str, Any] = run.summary
        return summary
    finally:
        run.close()


def _of_mode(run: Run, recipe: RunRecipe) -> ModeRun:
    if isinstance(recipe, OnlineRecipe):
        return OnlineRun(run, recipe)
    if isinstance(recipe, ExploreRecipe):
        return ExploreRun(run, recipe)
    if isinstance(recipe, TrainRecipe):
        return TrainRun(run, recipe)
    if isinstance(recipe, OfflineRecipe):
        return OfflineRun(run, recipe)
    if isinstance(recipe, EvalRecipe):
        return EvalRun(run, recipe)
    raise TypeError(f"no run for a recipe of type {type(recipe).__name__}")
