"""A run that explores with a fixed policy and trains nothing: rows for another time, or another machine."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, closing
from typing import Any

from rft_data.core.errors import EngineError, Stopped
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.exploring import Exploring
from rft_data.loop.online import LOOK_S
from rft_data.loop.resume import take_up_exploring
from rft_data.recipe.modes import ExploreRecipe
from rft_data.run import build, roles
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.preparation import publish_folder, read_tasks, start_fleet
from rft_data.run.report import package_versions
from rft_data.sampler import make_sampler
from rft_data.sampler.ledger import CONSUMER
from rft_data.weights import checkpoint


class ExploreRun:
    """One start of an exploring run."""

    def __init__(self, run: Run, recipe: ExploreRecipe) -> None:
        """Check everything that can be checked without an engine, then record the start."""
        self.run = run
        self.recipe = recipe
        self.checkpoints = run.directory / "checkpoints"
        self.pipeline = build.experience_pipeline(recipe, run.buffer)
        roles.check_explorer(recipe.explorer)
        tasks, self.task_report = read_tasks(recipe, ("train",), run.buffer)
        self.base = build.model_folder(recipe.model, run.directory, recipe.seed)
        run.begin()
        run.buffer.add_tasks(tasks)
        played = [task for task in tasks if task.split == "train"]
        selector = build.selector_of(recipe.selector, played, recipe.seed)
        self.dispatcher = Dispatcher(selector, {task.key: task for task in played})

    def execute(self, control: RunControl) -> dict[str, Any]:
        """Play what is not played yet; returns the summary."""
        run, recipe = self.run, self.recipe
        with ExitStack() as opened:
            opened.enter_context(closing(self.pipeline))
            placement = roles.placement_of(recipe, run.run_id, run.buffer, opened)
            fleet = start_fleet(recipe, placement, self.base, run, whole_rounds=False)
            published = run.versions.published()
            fleet.publish(
                published[-1] if published else publish_folder(recipe, placement, run.versions, self.base)
            )
            fleet.settle()
            exploring = self._taken_up(fleet)
            self._explore(exploring, control)
        return {
            "run_id": run.run_id,
            "groups": exploring.sampler.conservation(),
            "tasks": self.task_report,
            "buffer_rows": run.buffer.counts(),
            "policy_version": run.versions.latest,
            "recipe_hash": run.hash,
            "versions": package_versions(),
        }

    def _taken_up(self, fleet: Any) -> Exploring:
        run, least_members = self.run, self.recipe.explorer.least_members
        at = take_up_exploring(
            run.buffer,
            run.ledger,
            self.pipeline,
            self.dispatcher,
            checkpoints=self.checkpoints,
            least_members=least_members,
        )
        sampler = make_sampler(
            "fifo",
            {},
            ledger=run.ledger,
            versions=run.versions,
            consumer=CONSUMER,
            groups_per_step=1,
            max_staleness=None,
            history=at.history,
            settled_steps=0,
        )
        return Exploring(
            buffer=run.buffer,
            ledger=run.ledger,
            sampler=sampler,
            dispatcher=self.dispatcher,
            fleet=fleet,
            pipeline=self.pipeline,
            least_members=least_members,
            closed=sum(result.outcome != "cancelled" for result in at.history),
        )

    def _explore(self, exploring: Exploring, control: RunControl) -> None:
        """Until enough groups are closed. Raises: Stopped when asked to."""
        recipe, fleet = self.recipe, exploring.fleet
        snapshot = exploring.closed
        while exploring.closed < recipe.groups or fleet.futures():
            if not control.stop_requested:
                room = min(recipe.groups - exploring.closed, recipe.checkpoint_every) - fleet.playing
                exploring.start(room)
            if not fleet.futures():
                break
            wait(fleet.futures(), LOOK_S, FIRST_COMPLETED)
            exploring.collect()
            if exploring.closed >= snapshot + recipe.checkpoint_every:
                snapshot = exploring.closed
                self._seal(exploring)
            control.progress(f"{exploring.closed} of {recipe.groups} groups")
        self._seal(exploring)
        if exploring.sampler.conservation()["failed"] == exploring.closed:
            raise EngineError(
                f"all {exploring.closed} groups failed, the last with: {exploring.last_error}; nothing can "
                "be trained on. Mend the reward, the workflow or the tasks, and start over with --fresh."
            )
        if exploring.closed < recipe.groups:
            if control.stop_requested:
                raise Stopped(f"stopped after {exploring.closed} of {recipe.groups} groups, as asked")
            raise EngineError(
                f"no explorer serves weights, {exploring.closed} of {recipe.groups} groups are played; "
                "this is a defect: report it with the run's log."
            )

    def _seal(self, exploring: Exploring) -> None:
        run = self.run
        selector = self.dispatcher.selector.state_dict()
        state = {"selector": selector, "dispatcher": self.dispatcher.state_dict()}
        run.buffer.add_rows(
            "task_state", [{"run_id": run.run_id, "step": exploring.closed, "selector": selector}]
        )
        folder = self.checkpoints / f"checkpoint-{exploring.closed}"
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.seal(folder, exploring.closed, state)
        checkpoint.prune(self.checkpoints, keep=checkpoint.KEPT)
