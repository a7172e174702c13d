"""An online run from recipe to summary: tasks, offline stages, the loop, evaluations.

Each phase that a stopped run had completed is skipped when the run is continued.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rft_data import build, checkpoint
from rft_data.conservation import check_conservation
from rft_data.curation import clean_tasks
from rft_data.errors import RecipeError
from rft_data.evaluation import accuracy, evaluation_tasks
from rft_data.judge import recover_groups, stored_groups
from rft_data.loop import CONSUMER, OnlineLoop, Schedule, Stopwatch
from rft_data.protocols import Explorer, Pipeline, Selector
from rft_data.recipe.modes import OnlineRecipe
from rft_data.recipe.sections import GrpoStage, SftStage
from rft_data.report import draw, package_versions
from rft_data.rows import GroupResult, Task, TaskKey
from rft_data.run import Run
from rft_data.sampler import Fifo

log = logging.getLogger(__name__)


def run_recipe(recipe: OnlineRecipe) -> dict[str, Any]:
    """Run what is not done yet and return the summary.

    Raises: RecipeError and other RftErrors; nothing is recorded before the recipe has been checked.
    """
    build.prepare_process()
    run = Run(recipe)
    try:
        if run.summary is None:
            run.finish(OnlineRun(run).execute())
        else:
            log.info("this run is complete; start over with --fresh")
        summary: dict[str, Any] = run.summary
        return summary
    finally:
        run.close()


class OnlineRun:
    """The phases of one start of a run."""

    def __init__(self, run: Run) -> None:
        """Check everything that can be checked without an engine, then record the start."""
        self.run = run
        self.recipe = run.recipe
        with Stopwatch(run.seconds, "checks"):
            self.pipeline: Pipeline = build.experience_pipeline(self.recipe)
            build.check_stages(self.recipe)
        with Stopwatch(run.seconds, "tasks"):
            self.tasks, self.task_report = self._tasks()
            self.base = build.model_folder(self.recipe.model, run.directory, self.recipe.seed)
            run.begin()
            self._store_tasks()
        self.heldout = evaluation_tasks(self.tasks, self.recipe.evaluation.limit)

    def execute(self) -> dict[str, Any]:
        """Every phase that is not done yet; returns the summary."""
        run, recipe = self.run, self.recipe
        with Stopwatch(run.seconds, "engine_start"):
            log.info("starting the %s engine", recipe.explorer.engine.use)
            engine = build.engine_of(recipe.explorer.engine, self.base, recipe.seed)
        try:
            explorer = build.explorer_of(recipe.explorer, engine, self.base, run.run_id, run.attempt)
            run.once("start", lambda: self._publish_and_evaluate(explorer, self.base, "start"))
            model = self.base
            for number, stage in enumerate(recipe.stages):
                if isinstance(stage, SftStage):
                    model = self._sft(stage, number, model, explorer)
                else:
                    self._grpo(stage, model, explorer)
        finally:
            engine.close()
        return self._summary()

    def _tasks(self) -> tuple[list[Task], dict[str, Any]]:
        recipe = self.recipe
        read = [task for section in recipe.tasks for task in build.tasks_of(section)]
        distinct = list({task.key: task for task in read}.values())
        tasks, operators = clean_tasks(distinct, recipe)
        splits = {split: sum(task.split == split for task in tasks) for split in ("train", "heldout")}
        log.info("%d tasks read, %d kept: %s", len(read), len(tasks), splits)
        for split, count in splits.items():
            if count == 0:
                raise RecipeError(
                    f"no task of split '{split}' is left of the {len(read)} read; set 'heldout' of a taskset "
                    "between 0 and 1, and look at what 'task_ops' drops."
                )
        return tasks, {"read": len(read), "kept": len(tasks), **splits, "operators": operators}

    def _store_tasks(self) -> None:
        run = self.run
        run.buffer.add_tasks(self.tasks)
        for member, section in enumerate(self.recipe.experts):
            stored = run.buffer.append(build.expert_rows(section, member, self.tasks, run.run_id))
            log.info("%d solutions by %s, %d of them new", len(stored.seqs), section.use, stored.stored)

    def _sft(self, stage: SftStage, number: int, model: Path, explorer: Explorer) -> Path:
        run = self.run
        output = run.directory / "stages" / f"{number}-sft"

        def act() -> None:
            from trainers.sft import train_sft

            rows = run.buffer.read("experiences")
            mine = pc.and_(pc.equal(rows["source"], "expert"), pc.equal(rows["run_id"], run.run_id))
            rows = rows.filter(mine)
            log.info("SFT on %d stored experiences", rows.num_rows)
            with Stopwatch(run.seconds, "sft"):
                train_sft(model, rows, output, options=stage.trl, seed=self.recipe.seed)
            self._publish_and_evaluate(explorer, output, "sft")

        run.once(f"{number}-sft", act)
        return output

    def _publish_and_evaluate(self, explorer: Explorer, model: Path, label: str) -> None:
        from trainers.weights import publishable

        explorer.engine.load_weights(self.run.versions.publish(0, lambda folder: publishable(model, folder)))
        self._evaluate(explorer, label)

    def _evaluate(self, explorer: Explorer, label: str) -> None:
        run = self.run
        with Stopwatch(run.seconds, "evaluation"):
            rows = explorer.evaluate(self.heldout, f"{run.run_id}/eval-{label}-{run.attempt}")
        run.buffer.append(rows)
        # the recipe's first reward component decides whether an answer is right
        found = accuracy(rows, self.heldout, self.recipe.explorer.reward[0].use)
        run.progress["heldout_accuracy"][label] = found.overall
        run.progress["by_difficulty"][label] = found.by_class
        log.info("held-out accuracy, %s: %.1f %% of %d tasks", label, 100 * found.overall, len(rows))

    def _grpo(self, stage: GrpoStage, model: Path, explorer: Explorer) -> None:
        def act() -> None:
            with Stopwatch(self.run.seconds, "rl"):
                self._reinforce(stage, model, explorer)
            self._evaluate(explorer, "final")

        self.run.once("grpo", act)

    def _reinforce(self, stage: GrpoStage, model: Path, explorer: Explorer) -> None:
        from trainers.grpo import GrpoTrainer

        run, recipe = self.run, self.recipe
        tasks = {task.key: task for task in self.tasks if task.split == "train"}
        run.ledger.attach(CONSUMER)
        resumed, history = self._resume(tasks)
        settled = 0 if resumed is None else resumed.step
        sampler = Fifo(
            run.ledger,
            run.versions,
            consumer=CONSUMER,
            groups_per_step=stage.groups_per_step,
            max_staleness=recipe.sync.max_staleness,
            history=history,
            settled_steps=settled,
        )
        trainer = GrpoTrainer(
            model_path=model,
            output_dir=run.directory / "checkpoints",
            steps=stage.steps,
            rows_per_step=stage.groups_per_step * recipe.explorer.group_size,
            options={**stage.trl, "temperature": recipe.explorer.temperature},
            seed=recipe.seed,
            resume_from=None if resumed is None else resumed.directory,
        )
        loop = OnlineLoop(
            run_id=run.run_id,
            buffer=run.buffer,
            ledger=run.ledger,
            versions=run.versions,
            sampler=sampler,
            selector=self._selector(list(tasks.values()), resumed, history),
            explorer=explorer,
            pipeline=self.pipeline,
            trainer=trainer,
            tasks=tasks,
            schedule=schedule_of(stage, recipe.sync.every),
            on_step=lambda step, metrics: report_step(step, stage.steps, metrics),
        )
        try:
            loop.run()
        finally:
            trainer.close()
        run.progress["groups"] = sampler.conservation()
        rows = check_conservation(run.buffer, run.ledger, CONSUMER, sampler.conservation(), stage.steps)
        run.progress["rows"] = rows.as_dict()

    def _resume(
        self, tasks: Mapping[TaskKey, Task]
    ) -> tuple[checkpoint.Checkpoint | None, list[GroupResult]]:
        """The newest complete checkpoint and every stored group; closes what a kill left open."""
        run = self.run
        group_size = self.recipe.explorer.group_size
        recovered = recover_groups(tasks, group_size, self.pipeline, run.buffer, run.run_id, run.attempt)
        resumed = checkpoint.newest(run.directory / "checkpoints")
        if recovered:
            log.info("%d groups had been stored but not judged; they are now", recovered)
        if resumed is not None:
            log.info("continuing from the checkpoint of step %d", resumed.step)
            run.ledger.consume(CONSUMER, resumed.step)
        return resumed, stored_groups(run.buffer, run.run_id)

    def _selector(
        self, tasks: list[Task], resumed: checkpoint.Checkpoint | None, history: list[GroupResult]
    ) -> Selector:
        """The selector as it was, and what it missed since the checkpoint."""
        selector = build.selector_of(self.recipe.selector, tasks, self.recipe.seed)
        seen = 0
        if resumed is not None:
            selector.load_state_dict(resumed.state["selector"])
            seen = int(resumed.state["sampler"]["admitted"])
        late = [result for result in history if result.ticket.ordinal >= seen]
        if late:
            selector.select(len(late))  # these draws were made; a task is not drawn again for them
            selector.observe(late)
        return selector

    def _summary(self) -> dict[str, Any]:
        run = self.run
        summary = {
            "run_id": run.run_id,
            "seed": self.recipe.seed,
            "engine": self.recipe.explorer.engine.use,
            "heldout_accuracy": run.progress["heldout_accuracy"],
            "by_difficulty": run.progress["by_difficulty"],
            "tasks": self.task_report,
            "groups": run.progress["groups"],
            "rows": run.progress["rows"],
            "buffer_rows": run.buffer.counts(),
            "seconds": {k: round(v, 1) for k, v in run.seconds.items()},
            "policy_version": run.versions.latest,
            "consumed_steps": run.ledger.consumed(CONSUMER),
            "recipe_hash": run.hash,
            "versions": package_versions(),
        }
        summary["pictures"] = draw(run.buffer.read("metrics"), summary, run.directory)
        return summary


def schedule_of(stage: GrpoStage, publish_every: int) -> Schedule:
    """The loop's schedule for a stage."""
    return Schedule(
        steps=stage.steps,
        groups_per_step=stage.groups_per_step,
        publish_every=publish_every,
        checkpoint_every=stage.checkpoint_every,
        max_explored_per_step=int(stage.max_explored * stage.groups_per_step),
    )


def report_step(step: int, steps: int, metrics: Mapping[str, float]) -> None:
    """One line of progress every ten steps."""
    if step % 10 == 9 or step in (0, steps - 1):
        shown = "step %d/%d  reward %.3f  tokens %.0f  groups %d  staleness %d"
        values = [metrics[name] for name in ("reward", "completion_tokens", "groups", "staleness_max")]
        log.info(shown, step + 1, steps, *values)
