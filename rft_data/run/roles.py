"""Recipe sections to the roles of a run, where they live, and the sampler between them.

Roles are named by import path; what they import is imported where they live.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import need
from rft_data.core.protocols import Placement, RoleSpec, Sampler
from rft_data.loop import expert_groups
from rft_data.loop.closing import stored_groups
from rft_data.loop.resume import Position
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.recipe.modes import EvalRecipe, OnlineRecipe, PlayingRecipe, RunRecipe, TrainRecipe
from rft_data.recipe.sections import ExplorerSection, RlStage
from rft_data.run.build import PROCESS_ENVIRONMENT
from rft_data.sampler import make_policy, make_sampler
from rft_data.sampler.awaiting import Awaiting, Delayed
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.sampler.mix import OWN
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)

_PASSED_ON = ("HF_HUB_OFFLINE", "HF_HOME", "CUDA_VISIBLE_DEVICES")


def placement_of(recipe: RunRecipe, run_id: str, buffer: Buffer, opened: ExitStack) -> Placement:
    """Where the roles run and, if elsewhere, a hub they reach the buffer by; both end with `opened`."""
    from rft_data.placement import Surroundings, make_placement

    hub = None
    late = recipe.rewards if isinstance(recipe, OnlineRecipe) else None
    if recipe.placement.use != "inline" or late is not None:
        from rft_data.placement.hub.server import HubServer

        port, token = (0, None) if late is None else (late.port, _feedback_token())
        server = HubServer(buffer, host=_hub_host(recipe.placement.use), port=port, token=token)
        opened.callback(server.close)
        server.start()
        hub = (server.address, server.token)
        if late is not None:
            log.info("feedback is taken in at %s", server.address)
    environment = {
        **PROCESS_ENVIRONMENT,
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
    }
    placement = make_placement(recipe.placement.use, Surroundings(run_id, buffer, hub, environment))
    # Ctrl-C for the second time means now
    opened.push(lambda kind, *_: placement.close(now=kind is KeyboardInterrupt))
    return placement


def awaiting_of(recipe: OnlineRecipe | TrainRecipe, buffer: Buffer) -> Awaiting | None:
    """What keeps groups open until their rewards have come; None where they are judged as they come home."""
    if not isinstance(recipe, OnlineRecipe) or recipe.rewards is None:
        return None
    join = recipe.feedback_join or {}
    named = {name: join[name] for name in ("key", "how") if name in join}
    return Awaiting(buffer, Delayed(recipe.rewards.wait_s, **named))


def _feedback_token() -> str:
    """Raises: RecipeError without one."""
    token = os.environ.get(HUB_TOKEN, "")
    if not token:
        raise RecipeError(
            f"'rewards' takes feedback in by the run's hub, whose token is to be in the environment variable "
            f"{HUB_TOKEN}; set it to a secret of your own, for the run and for who gives feedback."
        )
    return token


def _hub_host(placement: str) -> str:
    """Loopback, or this node's own address where roles may be on others."""
    if placement != "ray":
        return "127.0.0.1"
    return str(need("ray", "ray", "placement 'ray'").util.get_node_ip_address())


def explorer_spec(recipe: PlayingRecipe | EvalRecipe, model: Path, attempt: int, number: int) -> RoleSpec:
    """The `number`-th explorer; each samples with a seed of its own."""
    section, place = recipe.explorer, recipe.placement.explorers
    engine = section.engine
    return RoleSpec(
        f"explorer-{number}",
        "explorers.role:explorer_role",
        {
            "engine": {**engine.model_dump(), "seed": recipe.seed + number},
            "model": str(model.absolute()),
            "run_id": recipe.name,
            "attempt": attempt,
            "explorer_id": f"explorer-{number}",
            "group_size": section.group_size,
            "sampling": {"max_tokens": section.max_tokens, "temperature": section.temperature},
            "reward": [reward.model_dump() for reward in section.reward],
            "workflow": section.workflow.model_dump(),
            "limits": section.limits,
            **({"greedy_member": True} if section.greedy_member else {}),
        },
        cpus=place.cpus,
        gpus=place.gpus,
    )


def trainer_place(recipe: RunRecipe) -> RoleSpec:
    """What the trainer will take up, for arithmetic before it can be started."""
    place = recipe.placement.trainer
    return RoleSpec("trainer", "trainers.role:grpo_role", {}, cpus=place.cpus, gpus=place.gpus)


def trainer_spec(
    recipe: OnlineRecipe | TrainRecipe,
    stage: RlStage,
    model: Path,
    checkpoints: Path,
    resume_from: Path | None,
    pipeline_hash: str,
) -> RoleSpec:
    """The trainer of the online stage, from a checkpoint if there is one."""
    sampled = recipe if isinstance(recipe, TrainRecipe) else recipe.explorer
    inline, place = recipe.placement.use == "inline", recipe.placement.trainer
    arguments = {
        "model": str(model.absolute()),
        "output_dir": str(checkpoints.absolute()),
        "steps": stage.steps,
        "rows_per_step": stage.groups_per_step * sampled.group_size,
        "options": {**stage.trl, "temperature": sampled.temperature},
        "seed": recipe.seed,
        "resume_from": None if resume_from is None else str(resume_from.absolute()),
        "pipeline_hash": pipeline_hash,
        "off_policy": stage.off_policy.model_dump(),
        "objective": objective_settings(stage),
        "limits": {
            "deadline_s": recipe.deadlines.step_s,
            # where roles take turns the trainer has every core; else as many as it was given
            "threads": None if inline else max(1, int(place.cpus) // place.processes),
            "processes": place.processes,
        },
    }
    return replace(trainer_place(recipe), arguments=arguments)


def objective_settings(stage: RlStage) -> dict[str, Any]:
    """What the stage says of its loss, as the trainer takes it."""
    settings = stage.model_dump(include={"loss", "batch_ops", "kl", "critic", "lora"})
    return {**settings, "reference": stage.teacher}


def max_uses_of(recipe: RunRecipe) -> int:
    """How often the recipe's sampler may lease one group."""
    if isinstance(recipe, OnlineRecipe | TrainRecipe):
        return make_policy(recipe.sampler.use, recipe.sampler.args).max_uses
    return 1


def mixed_in(recipe: OnlineRecipe | TrainRecipe) -> list[str]:
    """The books of other groups that the sampler mixes in: other runs', and this run's experts'."""
    parts = recipe.sampler.args.get("parts", {}) if recipe.sampler.use == "mix" else {}
    experts = {expert_groups.book_of(recipe.books)} if expert_groups.PART in parts else set()
    return sorted({name.partition("/")[0] for name in parts} - {OWN, expert_groups.PART} | experts)


def _sampler_arguments(recipe: OnlineRecipe | TrainRecipe) -> dict[str, Any]:
    """The sampler's arguments, with the part `experts` under the name that its groups begin with."""
    args = dict(recipe.sampler.args)
    if recipe.sampler.use == "mix" and expert_groups.PART in args.get("parts", {}):
        named = {expert_groups.PART: expert_groups.beginning_of(recipe.books)}
        args["parts"] = {named.get(name, name): share for name, share in args["parts"].items()}
    return args


def sampler_of(
    recipe: OnlineRecipe | TrainRecipe,
    stage: RlStage,
    buffer: Buffer,
    ledger: Ledger,
    versions: VersionRegistry,
    at: Position,
) -> Sampler:
    """The version-aware sampler, its book as the run left it. Stored groups have no bound of staleness."""
    others = [group for run_id in mixed_in(recipe) for group in stored_groups(buffer, run_id)]
    sampler = make_sampler(
        recipe.sampler.use,
        _sampler_arguments(recipe),
        ledger=ledger,
        versions=versions,
        consumer=CONSUMER,
        groups_per_step=stage.groups_per_step,
        max_staleness=recipe.sync.max_staleness if isinstance(recipe, OnlineRecipe) else None,
        history=[*at.history, *others],
        settled_steps=at.step,
    )
    if "sampler" in at.state:
        sampler.load_state_dict(at.state["sampler"])
    return sampler


def check_explorer(section: ExplorerSection) -> None:
    """Build rewards and limits, so that a mistake shows before any work.

    Raises: RecipeError, UnknownComponentError.
    """
    from explorers.limits import limits_of
    from explorers.rewards.rules import is_trusted, make_reward

    limits_of(section.limits, section.group_size)
    for reward in section.reward:
        if ":" not in reward.use or is_trusted(reward.use):  # other people's code stays out of this process
            make_reward(reward.use, reward.args)
