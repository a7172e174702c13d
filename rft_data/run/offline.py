"""A run that trains on what its buffer holds: imitation, preferences, a reward model. It explores nothing."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rft_data.core.lookup import need
from rft_data.recipe.modes import OfflineRecipe
from rft_data.recipe.offline import KtoStage, RewardModelStage, SftStage
from rft_data.run import build, roles
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.offline_stages import (
    check_folder,
    measure_preferences,
    stage_folder,
    stage_name,
    train_stage,
)
from rft_data.run.preparation import publish_folder
from rft_data.run.report import package_versions

log = logging.getLogger(__name__)


class OfflineRun:
    """One start of an offline run; stages that a stopped one had completed are skipped."""

    def __init__(self, run: Run, recipe: OfflineRecipe) -> None:
        """Check options and that every stage finds something, then record the start.

        Raises: RecipeError; TrainingError saying what the buffer has when a stage finds nothing.
        """
        self.run = run
        self.recipe = recipe
        need("trl", "train", "training")
        check_offline_stages(recipe, run)
        self.base = build.model_folder(recipe.model, run.directory, recipe.seed)
        run.begin()

    def execute(self, control: RunControl) -> dict[str, Any]:
        """Train every stage that is not trained yet; returns the summary.

        Raises: Stopped, between two stages, when somebody asked for it.
        """
        run, recipe, model = self.run, self.recipe, self.base
        with ExitStack() as opened:
            self.placement = roles.placement_of(recipe, run.run_id, run.buffer, opened)
            for warning in self.placement.preflight([roles.trainer_place(recipe)]):
                log.warning("%s", warning)
            if recipe.heldout is not None:
                control.phase("measuring the start model")
                run.once("start", lambda: self._measure(self.base, "start"))
            for number, stage in enumerate(recipe.stages):
                control.phase(f"stage {number}: {stage.algorithm}")
                name, folder = stage_name(number, stage), stage_folder(run, number, stage)
                if not run.once(name, partial(self._stage, number, model)):
                    check_folder(run, number, stage)
                if recipe.heldout is not None:
                    run.once(f"{name} measured", partial(self._measure, folder, name, stage.algorithm))
                if not isinstance(stage, RewardModelStage):
                    model = folder
            if model != self.base:
                run.once("publish", partial(self._publish, model))
        return self._summary(model)

    def _stage(self, number: int, model: Path) -> None:
        run, recipe = self.run, self.recipe
        stage, heldout = recipe.stages[number], recipe.heldout
        share = heldout.fraction if heldout else 0.0
        train_stage(run, recipe, self.placement, stage, number, model, share)

    def _measure(self, model: Path, label: str, algorithm: str = "") -> None:
        heldout = self.recipe.heldout
        if heldout is not None:
            measure_preferences(
                self.run, self.recipe, self.placement, heldout, self.base, model, label, algorithm
            )

    def _publish(self, model: Path) -> None:
        publish_folder(self.recipe, self.placement, self.run.versions, model)

    def _summary(self, model: Path) -> dict[str, Any]:
        run = self.run
        return {
            "run_id": run.run_id,
            "seed": self.recipe.seed,
            "model": str(model),
            "preferences": run.progress.get("preferences", {}),
            "stages": run.progress.get("stages", {}),
            "buffer_rows": run.buffer.counts(),
            "seconds": {k: round(v, 1) for k, v in run.seconds.items()},
            "policy_version": run.versions.latest,
            "recipe_hash": run.hash,
            "versions": package_versions(),
        }


def check_offline_stages(recipe: OfflineRecipe, run: Run) -> None:
    """Build every stage's TRL and PEFT configs and look whether the buffer has what it chooses.

    Raises: RecipeError for options; TrainingError saying what there is where a stage would find nothing.
    """
    from trainers.offline.offline_stage import check_stage
    from trainers.offline.stored_pairs import PairChoice, require_pairs
    from trainers.offline.stored_rows import RowChoice, require_rows

    for stage in recipe.stages:
        check_stage(stage.algorithm, run.directory, options=stage.trl, seed=recipe.seed, lora=stage.lora)
    if run.attempt:
        return  # a resumed run may have stages done whose rows are gone
    for stage in recipe.stages:
        given = {} if stage.data is None else stage.data.model_dump(exclude={"threshold"})
        if isinstance(stage, SftStage | KtoStage):
            require_rows(run.buffer, RowChoice(**given))
        else:
            require_pairs(run.buffer, PairChoice(**given))
    if recipe.heldout is not None:
        given = recipe.heldout.model_dump(exclude={"fraction", "limit"})
        require_pairs(run.buffer, PairChoice(**given))
