"""A recipe to its run: the one dispatch by mode."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial

from rft_data.core.collector import collector_paused
from rft_data.core.errors import TrainerDiedError
from rft_data.recipe.extras import check_extras
from rft_data.recipe.modes import EvalRecipe, ExploreRecipe, OfflineRecipe, TrainRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import RunRecipe
from rft_data.run import assembly
from rft_data.run.build import prepare_process
from rft_data.run.control import RunControl
from rft_data.run.evaluate import run_evaluate
from rft_data.run.explore import run_explore
from rft_data.run.folder import Run
from rft_data.run.imports import import_sources
from rft_data.run.offline import run_offline
from rft_data.run.online import run_online
from rft_data.run.train import run_train
from rft_data.sampler.ledger import CONSUMER

log = logging.getLogger(__name__)


_DEATHS = 3
"""How often the trainer may die between two checkpoints."""


def run_recipe(recipe: RunRecipe, *, take_over: bool = False) -> dict[str, object]:
    """Run what is not done yet and return the summary.

    When the trainer dies, the run starts again from its newest checkpoint, as `rft resume` does.
    Files that the recipe imports are stored first. Of the run itself nothing is recorded before the recipe
    has been checked.
    Args: take_over: also a run on an object store that is at work on another machine, which it ends.
    Raises: RecipeError and other RftErrors; MissingExtraError before anything is made.
    """
    check_extras(recipe)
    prepare_process()
    deaths: Counter[int] = Counter()
    while True:
        with closing(Run(recipe, take_over=take_over)) as run:
            take_over = False  # after a death the run is another's if that took it over meanwhile
            if run.summary is not None:
                log.info(
                    "this run is complete; go on: rft resume %s steps=NUMBER (explore: groups=NUMBER); start "
                    "over: --fresh",
                    run.directory,
                )
                return run.summary
            control = RunControl(run.directory, attempt=run.attempt)
            try:
                with control:
                    if recipe.imports and run.attempt == 0:
                        control.phase("importing")
                        import_sources(recipe.imports, run.buffer)
                    control.phase("checking the recipe and reading the tasks")
                    with collector_paused():  # checks import torch and TRL
                        mode = _mode(recipe, run)
                    control.runs_programs_in("" if run.sandbox is None else str(run.sandbox))
                    run.begin()
                    run.finish(mode(control))
                return run.summary or {}
            except TrainerDiedError as err:
                held = run.ledger.consumed(CONSUMER)
                deaths[held] += 1
                if control.stop_requested or deaths[held] > _DEATHS:
                    raise
                log.warning("%s The run goes on from the checkpoint of step %d.", err, held)


def _mode(recipe: RunRecipe, run: Run) -> Callable[[RunControl], dict[str, object]]:
    """The recipe's mode, with the parts of its run: everything is checked, nothing is started."""
    match recipe:
        case OnlineRecipe():
            return partial(run_online, assembly.online_parts(recipe, run))
        case ExploreRecipe():
            return partial(run_explore, assembly.explore_parts(recipe, run))
        case TrainRecipe():
            return partial(run_train, assembly.train_parts(recipe, run))
        case OfflineRecipe():
            return partial(run_offline, assembly.offline_parts(recipe, run))
        case EvalRecipe():
            return partial(run_evaluate, assembly.evaluate_parts(recipe, run))
    raise TypeError(f"no run for a recipe of type {type(recipe).__name__}")
