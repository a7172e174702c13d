"""How to make the roles of a run, from its recipe: explorers, and the trainer of the last stage."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from rft_data.core.engine import Sampling
from rft_data.core.roles import RoleSpec
from rft_data.core.words import HubRole
from rft_data.recipe.kinds import with_explorers
from rft_data.recipe.modes import ExplorerRecipe, TrainingRecipe
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.folder import Run
from rft_data.run.image_checks import check_images
from rft_data.run.parts import AnyModel, Tasks
from rft_data.run.programs import rewards_in_sandbox, workflow_in_sandbox
from rft_data.run.transports import Way, chosen_way

log = logging.getLogger(__name__)

TRAINER, EXPLORER = "trainers.role:grpo_role", "explorers.role:explorer_role"
"""The factories of the roles."""


def explorer_specs(recipe: ExplorerRecipe, run: Run, model: AnyModel, tasks: Tasks) -> list[RoleSpec]:
    """Every explorer, each of which samples with a seed of its own. Raises: RecipeError, RowError."""
    section, place = recipe.explorer, recipe.placement.explorers
    engine = _engine(recipe, run)
    check_images(tasks.all, model, section.engine.use, section.engine.options)
    common = {"model": str(model.absolute() if isinstance(model, Path) else model), **_plan(recipe, run)}
    return [
        RoleSpec(
            f"explorer-{number}",
            EXPLORER,
            {
                "plan": {
                    **common,
                    "engine": {**engine, "seed": recipe.seed + number},
                    "explorer_id": f"explorer-{number}",
                }
            },
            cpus=place.cpus,
            gpus=place.gpus,
            gpu_group=gpu_group(recipe),
            hub_role=HubRole.EXPLORER,
        )
        for number in range(place.most)
    ]


def _engine(recipe: ExplorerRecipe, run: Run) -> dict[str, Any]:
    """The engine of every explorer, but for its seed."""
    way, engine = weights_way(recipe, run), recipe.explorer.engine.model_dump()
    if way is not None:
        engine["transport"] = {"use": way.use}
    if recipe.placement.colocate and recipe.placement.explorers.gpus:
        engine["options"] = {**engine["options"], "enable_sleep_mode": True}
    elif recipe.placement.colocate:  # vLLM refuses the option on a CPU, and not the calls
        log.warning("colocate: on a CPU vLLM's sleep frees no memory; only the order of calls is the same")
    return engine


def _plan(recipe: ExplorerRecipe, run: Run) -> dict[str, object]:
    """How groups are played: the part of a plan that is the same for all explorers."""
    section = recipe.explorer
    sampling = Sampling(section.max_tokens, section.temperature, tuple(section.stop), section.min_tokens)
    named = {
        name: workflow_in_sandbox(section, run, one.model_dump()) for name, one in section.workflows.items()
    }
    return {
        "run_id": recipe.name,
        "attempt": run.attempt,
        "group_size": section.group_size,
        "sampling": sampling.stored(),
        "reward": rewards_in_sandbox(section, run),
        "workflow": workflow_in_sandbox(section, run, section.workflow.model_dump()),
        **({"workflows": named} if named else {}),
        "limits": section.limits,
        **({"greedy_member": True} if section.greedy_member else {}),
    }


def trainer_spec(recipe: TrainingRecipe, checkpoints: Path, pipeline_hash: str) -> RoleSpec:
    """The trainer of the stage; the model and the checkpoint it starts from are known later."""
    stage, place = recipe.rl, recipe.placement.trainer
    spec = trainer_place(recipe)
    # where roles take turns the trainer has every core; else as many as it was given
    threads = None if recipe.placement.use == "inline" else max(1, int(place.cpus) // place.processes)
    plan = {
        "output_dir": str(checkpoints.absolute()),
        "steps": stage.steps,
        "rows_per_step": stage.groups_per_step * recipe.group_size,
        "options": {**stage.trl, "temperature": recipe.temperature},
        "seed": recipe.seed,
        "off_policy": stage.off_policy.model_dump(),
        "objective": stage.objective,
        "limits": {
            "deadline_s": recipe.deadlines.step_s,
            "threads": threads,
            "processes": place.processes,
            "shard": place.shard,
            "actors": {"namespace": recipe.run_id, "cpus": spec.cpus, "gpus": spec.gpus}
            if place.over_nodes
            else None,
        },
    }
    arguments = {"plan": plan, "pipeline_hash": pipeline_hash}
    return replace(spec, arguments=arguments)


def trainer_place(recipe: RunRecipe) -> RoleSpec:
    """The trainer without its arguments: what it, or each of its ranks that is an actor, needs."""
    place = recipe.placement.trainer
    actors = place.processes if place.over_nodes else 1
    return RoleSpec(
        "trainer",
        TRAINER,
        {},
        cpus=place.cpus / actors,
        gpus=place.gpus / actors,
        hub_role=HubRole.LEARNER,
        gpu_group=gpu_group(recipe),
        beside=actors - 1,
    )


def gpu_group(recipe: RunRecipe) -> str:
    """The name of the GPUs that engine and trainer use in turns; empty where each has its own."""
    return "colocated" if recipe.placement.colocate else ""


def weights_way(recipe: RunRecipe, run: Run) -> Way | None:
    """How weights reach the explorers; None where nothing samples with weights of ours."""
    playing = with_explorers(recipe)
    if playing is None or playing.explorer.base_url is not None:
        return None
    return chosen_way(playing.explorer.engine, recipe.placement, run.run_id, run.attempt)
