"""A run that trains on groups which another run explored: another process, another time."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from rft_data.core.errors import RecipeError
from rft_data.loop.closing import stored_groups
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.fleet import Fleet
from rft_data.recipe.modes import TrainRecipe
from rft_data.run import build, roles
from rft_data.run.checks import check_stages
from rft_data.run.control import RunControl
from rft_data.run.final_model import trained_model
from rft_data.run.folder import Run
from rft_data.run.online_stage import reinforce
from rft_data.run.report import package_versions
from rft_data.sampler.ledger import CONSUMER
from rft_data.tasks.selectors import Nothing

log = logging.getLogger(__name__)


class TrainRun:
    """One start of a training run."""

    def __init__(self, run: Run, recipe: TrainRecipe) -> None:
        """Check what can be checked, then record the start.

        Raises: RecipeError when the exploring run has no groups in this buffer.
        """
        self.run = run
        self.recipe = recipe
        build.experience_pipeline(recipe, run.buffer)
        check_stages(recipe)
        if run.attempt == 0:
            self._check_groups()
        self.base = build.model_folder(recipe.model, run.directory, recipe.seed)
        run.begin()

    def _check_groups(self) -> None:
        """Whether there is enough to train on, untouched."""
        recipe, [stage] = self.recipe, self.recipe.stages
        groups = stored_groups(self.run.buffer, recipe.explored_by)
        usable = sum(bool(group.seqs) for group in groups) * self.run.ledger.max_uses
        if not groups:
            raise RecipeError(
                f"buffer {recipe.buffer.uri} has no group of a run '{recipe.explored_by}'; give the name of "
                "the recipe that explored into it (rft buffer info shows the runs)."
            )
        if self.run.ledger.leases(CONSUMER):
            raise RecipeError(
                f"the groups of run '{recipe.explored_by}' have been trained on already; explore under "
                "another name, or copy them into a buffer of their own (rft buffer branch)."
            )
        if usable < stage.steps * stage.groups_per_step:
            raise RecipeError(
                f"run '{recipe.explored_by}' left {usable} uses of groups that may be trained on; "
                f"{stage.steps} steps of {stage.groups_per_step} groups need "
                f"{stage.steps * stage.groups_per_step}. Lower 'steps', explore more, or use 'replay'."
            )

    def execute(self, control: RunControl) -> dict[str, Any]:
        """Train to the last step; returns the summary."""
        run, recipe = self.run, self.recipe
        [stage] = recipe.stages
        with ExitStack() as opened:
            placement = roles.placement_of(recipe, run.run_id, run.buffer, opened)
            for warning in placement.preflight([roles.trainer_place(recipe)]):
                log.warning("%s", warning)
            done = reinforce(
                run,
                recipe,
                stage,
                self.base,
                dispatcher=Dispatcher(Nothing(), {}),
                placement=placement,
                fleet=Fleet([], run.versions, whole_rounds=True, deadline_s=recipe.deadlines.explore_s),
                control=control,
            )
            trained = trained_model(run, recipe, placement)
        return {
            "run_id": run.run_id,
            **done,
            "model": str(trained),
            "policy_version": run.versions.latest,
            "consumed_steps": run.ledger.consumed(CONSUMER),
            "recipe_hash": run.hash,
            "versions": package_versions(),
        }
