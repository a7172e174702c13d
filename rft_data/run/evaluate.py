"""A run that measures models, or the checkpoints of runs, on held-out tasks. It trains nothing."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rft_data.core.errors import MissingFileError
from rft_data.recipe.modes import EvalRecipe
from rft_data.run import roles
from rft_data.run.accuracy import evaluation_tasks
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.preparation import measure, publish_folder, read_tasks, start_fleet
from rft_data.run.report import package_versions
from rft_data.weights.adapter import adapter_in, check_base


class EvalRun:
    """One start of an evaluation; models that a stopped one had measured are skipped."""

    def __init__(self, run: Run, recipe: EvalRecipe) -> None:
        """Check what can be checked without an engine, then record the start.

        Raises: MissingFileError when a pattern names no model folder.
        """
        self.run = run
        self.recipe = recipe
        roles.check_explorer(recipe.explorer)
        self.models = [folder for pattern in recipe.models for folder in model_folders(pattern)]
        tasks, self.task_report = read_tasks(recipe, ("heldout",), run.buffer)
        self.heldout = evaluation_tasks(tasks, recipe.evaluation.limit)
        run.begin()
        run.buffer.add_tasks(tasks)

    def execute(self, control: RunControl) -> dict[str, Any]:
        """Measure every model that is not measured yet; returns the summary."""
        run, recipe = self.run, self.recipe
        with ExitStack() as opened:
            placement = roles.placement_of(recipe, run.run_id, run.buffer, opened)
            built_from = self.models[0]
            if (adapter := adapter_in(built_from)) is not None:
                check_base(adapter)
                built_from = Path(adapter["base"])
            fleet = start_fleet(recipe, placement, built_from, run, whole_rounds=True)

            def act(model: Path) -> None:
                fleet.publish(publish_folder(recipe, placement, run.versions, model))
                measure(run, fleet, recipe, self.heldout, model.name, str(model))

            for model in self.models:
                control.phase(str(model))
                run.once(str(model), partial(act, model))
        return {
            "run_id": run.run_id,
            "heldout_accuracy": run.progress["heldout_accuracy"],
            "by_difficulty": run.progress["by_difficulty"],
            "pass_at_k": run.progress.get("pass_at_k", {}),
            "tasks": self.task_report,
            "buffer_rows": run.buffer.counts(),
            "recipe_hash": run.hash,
            "versions": package_versions(),
        }


def model_folders(pattern: str) -> list[Path]:
    """The folders with a model, or a version that is an adapter, that a path or a pattern names; by step
    where they end in a number.

    Raises: MissingFileError when there is none.
    """
    root = Path(pattern)
    found = (
        [root] if root.is_dir() else list(Path(root.anchor or ".").glob(str(root.relative_to(root.anchor))))
    )
    models = [folder for folder in found if (folder / "config.json").is_file() or adapter_in(folder)]
    if not models:
        raise MissingFileError(
            f"models: '{pattern}' names no model folder (no config.json); give a Hugging Face folder, or a "
            "pattern such as runs/x/checkpoints/checkpoint-*, of a run with lora runs/x/weights/v* or "
            "runs/x/final."
        )
    return sorted(models, key=lambda folder: (_number(folder.name), folder.name))


def _number(name: str) -> int:
    end = name.rsplit("-", 1)[-1].lstrip("v")
    return int(end) if end.isdigit() else -1
