"""An online run from recipe to summary: tasks, offline stages, the loop, evaluations.

Each phase that a stopped run had completed is skipped when the run is continued.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rft_data.loop.dispatch import Dispatcher
from rft_data.recipe.modes import OnlineRecipe
from rft_data.recipe.offline import AnyOfflineStage, RewardModelStage, SftStage
from rft_data.recipe.sections import RlStage
from rft_data.run import build, roles
from rft_data.run.accuracy import evaluation_tasks
from rft_data.run.checks import check_stages
from rft_data.run.control import RunControl
from rft_data.run.curate import curator_of
from rft_data.run.final_model import trained_model
from rft_data.run.folder import Run
from rft_data.run.offline_stages import check_folder, stage_folder, stage_name, train_stage
from rft_data.run.online_stage import reinforce
from rft_data.run.preparation import measure, publish_folder, read_tasks, start_fleet
from rft_data.run.report import draw, package_versions
from rft_data.run.stopwatch import Stopwatch
from rft_data.sampler.ledger import CONSUMER

log = logging.getLogger(__name__)


class OnlineRun:
    """The phases of one start of a run."""

    def __init__(self, run: Run, recipe: OnlineRecipe) -> None:
        """Check everything that can be checked without an engine, then record the start."""
        self.run = run
        self.recipe = recipe
        with Stopwatch(run.seconds, "checks"):
            build.experience_pipeline(recipe, run.buffer)
            if recipe.task_upkeep is not None:
                build.task_pipeline(recipe, recipe.task_upkeep.ops, "task_upkeep.ops", run.buffer)
            roles.check_explorer(recipe.explorer)
            check_stages(recipe)
        with Stopwatch(run.seconds, "tasks"):
            self.tasks, self.task_report = read_tasks(recipe, ("train", "heldout"), run.buffer)
            self.base = build.model_folder(recipe.model, run.directory, recipe.seed)
            run.begin()
            self._store_tasks()
        self.heldout = evaluation_tasks(self.tasks, recipe.evaluation.limit)

    def execute(self, control: RunControl) -> dict[str, Any]:
        """Every phase that is not done yet; returns the summary."""
        run, recipe = self.run, self.recipe
        with ExitStack() as opened:
            control.phase("starting the explorers")
            self.placement = roles.placement_of(recipe, run.run_id, run.buffer, opened)
            with Stopwatch(run.seconds, "engine_start"):
                self.fleet = start_fleet(
                    recipe,
                    self.placement,
                    self.base,
                    run,
                    beside=[roles.trainer_place(recipe)],
                    whole_rounds=recipe.sync.max_staleness == 0,
                )
            run.once("start", lambda: self._publish_and_evaluate(self.base, "start"))
            model = self.base
            for number, stage in enumerate(recipe.stages):
                control.phase(f"stage {number}: {stage.algorithm}")
                if isinstance(stage, RlStage):
                    self._grpo(stage, model, control)
                else:
                    model = self._offline(stage, number, model)
            control.phase("the final model")
            trained = trained_model(run, recipe, self.placement)
        return self._summary(trained)

    def _store_tasks(self) -> None:
        run = self.run
        run.buffer.add_tasks(self.tasks)
        for member, section in enumerate(self.recipe.experts):
            stored = run.buffer.append(build.expert_rows(section, member, self.tasks, run.run_id))
            log.info("%d solutions by %s, %d of them new", len(stored.seqs), section.use, stored.stored)

    def _offline(self, stage: AnyOfflineStage, number: int, model: Path) -> Path:
        """Train `model` on stored rows; returns the policy that the next stage goes on from."""
        run, output = self.run, stage_folder(self.run, number, stage)
        of_its_kind = sum(other.algorithm == stage.algorithm for other in self.recipe.stages)
        label = stage.algorithm if of_its_kind == 1 else stage_name(number, stage)
        is_policy = not isinstance(stage, RewardModelStage)

        # rows of others may answer held-out tasks; experts' never do
        chooses = not isinstance(stage, SftStage) or stage.data is not None
        heldout = max(taskset.heldout for taskset in self.recipe.tasks) if chooses else 0.0

        def act() -> None:
            train_stage(run, self.recipe, self.placement, stage, number, model, heldout)
            if is_policy:
                self._publish_and_evaluate(output, label)

        if not run.once(stage_name(number, stage), act):
            check_folder(run, number, stage)
        return output if is_policy else model

    def _grpo(self, stage: RlStage, model: Path, control: RunControl) -> None:
        run = self.run

        def act() -> None:
            with ExitStack() as opened, Stopwatch(run.seconds, "rl"):
                run.progress |= reinforce(
                    run,
                    self.recipe,
                    stage,
                    model,
                    dispatcher=self._dispatcher(opened),
                    placement=self.placement,
                    fleet=self.fleet,
                    control=control,
                )
            self._evaluate("final")

        run.once("grpo", act)

    def _dispatcher(self, opened: ExitStack) -> Dispatcher:
        """The training tasks and who chooses among them; with those that a stopped run had made.

        Args: opened: closes what it opens.
        """
        recipe, buffer = self.recipe, self.run.buffer
        tasks = {task.key: task for task in self.tasks if task.split == "train"}
        selector = build.selector_of(recipe.selector, list(tasks.values()), recipe.seed)
        if recipe.task_upkeep is None:
            return Dispatcher(selector, tasks)
        heldout = [task for task in self.tasks if task.split == "heldout"]
        curator = curator_of(recipe, recipe.task_upkeep, selector, tasks, heldout, buffer)
        return Dispatcher(opened.enter_context(closing(curator)), tasks)

    def _publish_and_evaluate(self, model: Path, label: str) -> None:
        self.fleet.publish(publish_folder(self.recipe, self.placement, self.run.versions, model))
        self._evaluate(label)

    def _evaluate(self, label: str) -> None:
        with Stopwatch(self.run.seconds, "evaluation"):
            measure(self.run, self.fleet, self.recipe, self.heldout, label, label)

    def _summary(self, trained: Path) -> dict[str, Any]:
        run = self.run
        summary = {
            "run_id": run.run_id,
            "seed": self.recipe.seed,
            "engine": self.recipe.explorer.engine.use,
            "placement": self.recipe.placement.use,
            "heldout_accuracy": run.progress["heldout_accuracy"],
            "by_difficulty": run.progress["by_difficulty"],
            "pass_at_k": run.progress.get("pass_at_k", {}),
            "stages": run.progress.get("stages", {}),
            "tasks": self.task_report,
            "groups": run.progress["groups"],
            "rows": run.progress["rows"],
            "buffer_rows": run.buffer.counts(),
            "seconds": {k: round(v, 1) for k, v in run.seconds.items()},
            "model": str(trained),
            "policy_version": run.versions.latest,
            "consumed_steps": run.ledger.consumed(CONSUMER),
            "recipe_hash": run.hash,
            "versions": package_versions(),
        }
        summary["pictures"] = draw(run.buffer.read("metrics"), summary, run.directory)
        return summary
