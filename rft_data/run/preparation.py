"""What runs of every mode do before their own work: tasks in, explorers up, a policy served."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.codec import to_experiences
from rft_data.core.errors import RecipeError
from rft_data.core.protocols import Placement, Role, RoleSpec
from rft_data.core.rows import Task, WeightRef
from rft_data.loop.fleet import Fleet
from rft_data.recipe.modes import EvalRecipe, OnlineRecipe, PlayingRecipe, RunRecipe, TasksRecipe
from rft_data.run import build, roles
from rft_data.run.accuracy import accuracy, pass_at_k
from rft_data.run.curate import clean_tasks
from rft_data.run.folder import Run
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)


def read_tasks(
    recipe: TasksRecipe, needed: Sequence[str], buffer: Buffer
) -> tuple[list[Task], dict[str, Any]]:
    """The recipe's tasks, each once, cleaned by `task_ops`; and what became of those that were read.

    Args: buffer: what earlier runs stored of them, for operators that look at it.
    Raises: RecipeError when none is left of a split in `needed`.
    """
    read = [task for section in recipe.tasks for task in build.tasks_of(section)]
    distinct = list({task.key: task for task in read}.values())
    tasks, operators = clean_tasks(distinct, recipe, buffer)
    _known_code(recipe, tasks)
    splits = {split: sum(task.split == split for task in tasks) for split in ("train", "heldout")}
    log.info("%d tasks read, %d kept: %s", len(read), len(tasks), splits)
    for split in needed:
        if splits[split] == 0:
            raise RecipeError(
                f"no task of split '{split}' is left of the {len(read)} read; set 'heldout' of a taskset "
                "between 0 and 1, and look at what 'task_ops' drops."
            )
    return tasks, {"read": len(read), "kept": len(tasks), **splits, "operators": operators}


def _known_code(recipe: TasksRecipe, tasks: Sequence[Task]) -> None:
    """Raises: RecipeError when a task asks for a workflow or reward the recipe lacks; data names no code."""
    if not isinstance(recipe, PlayingRecipe | EvalRecipe):
        return
    rewards = {component.use for component in recipe.explorer.reward}
    if lacking := sorted({task.reward for task in tasks if task.reward} - rewards):
        raise RecipeError(
            f"tasks ask for the rewards {lacking}, 'explorer.reward' has {sorted(rewards)}; add them there."
        )
    known = recipe.explorer.workflow.use
    if other := sorted({task.workflow for task in tasks if task.workflow not in (None, known)}):
        raise RecipeError(
            f"tasks ask for the workflows {other}, the recipe's 'explorer.workflow' is '{known}'; explore "
            "each workflow's tasks with a recipe of their own."
        )


def start_fleet(
    recipe: PlayingRecipe | EvalRecipe,
    placement: Placement,
    model: Path,
    run: Run,
    *,
    beside: Sequence[RoleSpec] = (),
    whole_rounds: bool,
) -> Fleet:
    """Start the explorers, side by side.

    Args:
        beside: roles that will be started later and need their place too.
        whole_rounds: see `Fleet`; always so where roles take turns.
    """
    count = recipe.placement.explorers.count
    specs = [roles.explorer_spec(recipe, model, run.attempt, number) for number in range(count)]
    for warning in placement.preflight([*specs, *beside]):
        log.warning("%s", warning)
    log.info("starting %d explorer(s) on %s", count, recipe.explorer.engine.use)
    if placement.overlaps:
        with ThreadPoolExecutor(count) as starting:
            started: list[Role] = list(starting.map(placement.start, specs))
    else:
        started = [placement.start(spec) for spec in specs]
    return Fleet(
        started,
        run.versions,
        whole_rounds=whole_rounds or not placement.overlaps,
        deadline_s=recipe.deadlines.explore_s,
    )


def offline(recipe: RunRecipe, placement: Placement, method: str, returns: Any, **arguments: Any) -> Any:
    """One call of the offline role, one process on one GPU at most, which lives as long as the call."""
    place = roles.trainer_place(recipe)
    one = replace(place, factory="trainers.offline.offline_role:offline_role", gpus=min(place.gpus, 1.0))
    role = placement.start(one)
    try:
        return role.call(method, returns, deadline_s=recipe.deadlines.stage_s, **arguments).result()
    finally:
        role.close()


def publish_folder(
    recipe: RunRecipe, placement: Placement, versions: VersionRegistry, model: Path
) -> WeightRef:
    """Make a Hugging Face folder a version of the run, as weights of no optimizer step."""
    header, draft = versions.header(0), versions.draft(0)
    return versions.finish(0, write_whole(recipe, placement, model, draft, header))


def write_whole(
    recipe: RunRecipe, placement: Placement, model: Path, folder: Path, header: Mapping[str, Any]
) -> str:
    """Write a model, or an adapter with its base, as whole weights into an existing empty folder.

    Returns: the digest of the folder's manifest, which says `header`.
    """
    arguments = {"model": str(model.absolute()), "directory": str(folder.absolute()), "header": dict(header)}
    digest: str = offline(recipe, placement, "publishable", str, **arguments)
    return digest


def measure(
    run: Run, fleet: Fleet, recipe: OnlineRecipe | EvalRecipe, tasks: Sequence[Task], label: str, key: str
) -> None:
    """Play held-out tasks on what the fleet was told to serve, and note their accuracy in the run's progress.

    The recipe's first reward component decides whether an answer is right.
    Args: label: names the rows. key: names the figure.
    """
    fleet.settle()
    judge, samples = recipe.explorer.reward[0].use, recipe.evaluation.samples
    seqs = fleet.evaluate(tasks, f"{run.run_id}/eval-{label}-{run.attempt}", samples)
    rows = to_experiences(run.buffer.take(seqs))
    found = accuracy(rows, tasks, judge)
    if samples > 1:
        run.progress.setdefault("pass_at_k", {})[key] = pass_at_k(rows, tasks, judge)
    run.progress["heldout_accuracy"][key] = found.overall
    run.progress["by_difficulty"][key] = found.by_class
    log.info("held-out accuracy, %s: %.1f %% of %d tasks", key, 100 * found.overall, len(rows))
