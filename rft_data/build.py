"""Recipe sections to objects: the one place that knows every concrete class.

Heavy packages are imported inside the functions, so that reading a recipe costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft_data.buffer import Buffer
from rft_data.errors import MissingFileError
from rft_data.judge import stored_groups
from rft_data.ledger import CONSUMER, Ledger
from rft_data.lookup import load, need
from rft_data.protocols import Placement, RoleSpec, Sampler, Selector
from rft_data.recipe.modes import EvalRecipe, OnlineRecipe, PlayingRecipe, RunRecipe, TasksRecipe, TrainRecipe
from rft_data.recipe.sections import (
    DifficultySelector,
    Experts,
    ExplorerSection,
    GrpoStage,
    Model,
    ReasoningGym,
    SftStage,
    ShuffleSelector,
    Taskset,
)
from rft_data.resume import Position
from rft_data.rows import Experience, Task, experience_id_of
from rft_data.sampler import make_policy, make_sampler
from rft_data.sampler.mix import OWN
from rft_data.selectors import Difficulty, Shuffle
from rft_data.sources import jsonl_tasks, reasoning_gym_tasks
from rft_data.versions import VersionRegistry

if TYPE_CHECKING:
    from ops.pipeline import OperatorPipeline

_PROCESS = {
    "OMP_NUM_THREADS": "1",  # vLLM's CPU workers spin; two threads cost double for the same speed
    "TORCHDYNAMO_DISABLE": "1",  # else vLLM compiles its logprob rank kernel at the first batch (10 s)
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is stepped in this process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LANCE_LOG": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",  # a bar per batch and per file would bury the run's own progress
}

_PASSED_ON = ("HF_HUB_OFFLINE", "HF_HOME", "CUDA_VISIBLE_DEVICES")


def prepare_process() -> None:
    """Set what libraries read from the environment at import; a value already set stays.

    A model is fetched from a hub only if the recipe names a hub id and HF_HUB_OFFLINE is not set.
    """
    for name, value in _PROCESS.items():
        os.environ.setdefault(name, value)


def tasks_of(section: Taskset) -> list[Task]:
    """Read one taskset."""
    common: dict[str, Any] = {
        "taskset": section.name,
        "difficulty": section.difficulty,
        "heldout": section.heldout,
    }
    source = section.source
    if isinstance(source, ReasoningGym):
        return reasoning_gym_tasks(
            source.dataset, size=source.size, seed=source.seed, args=source.args, **common
        )
    return jsonl_tasks(Path(source.path), prompt=section.prompt, answer=section.answer, **common)


def expert_rows(section: Experts, member: int, tasks: Sequence[Task], run_id: str) -> list[Experience]:
    """Solutions by one expert for the first `limit` training tasks of each taskset, by task id.

    Args: member: the expert's place in the recipe; experts of one task form a group.
    """
    solve: Callable[[Task], str] = load(section.use, "expert")
    rows = []
    for task in expert_tasks(section, tasks):
        group_id = f"{run_id}/expert-{task.task_id}"
        solution = solve(task)
        rows.append(
            Experience(
                experience_id=experience_id_of(run_id, task.key, 0, group_id, member),
                source="expert",
                run_id=run_id,
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=group_id,
                member=member,
                explorer_id=section.use,
                messages=(*task.messages, {"role": "assistant", "content": solution}),
                prompt_messages=len(task.messages),
                completion_text=solution,
                finish_reason="stop",
                reward=1.0,
            )
        )
    return rows


def expert_tasks(section: Experts, tasks: Sequence[Task]) -> list[Task]:
    """The tasks an expert solves."""
    chosen: list[Task] = []
    for name in section.tasksets:
        eligible = [task for task in tasks if task.split == "train" and task.taskset == name]
        chosen += sorted(eligible, key=lambda task: task.task_id)[: section.limit]
    return chosen


def model_folder(section: Model, run_dir: Path, seed: int) -> Path:
    """The Hugging Face folder of the starting policy, built now if the recipe says so.

    Raises: MissingFileError when a local path has no model in it.
    """
    if section.build is not None:
        need("torch", "train", "building a model")
        from trainers.tiny_model import build_tiny_model

        folder, draft = run_dir / "model", run_dir / ".draft-model"
        if not folder.is_dir():
            build_tiny_model(draft, seed=seed, **section.build.model_dump(exclude={"use"}))
            draft.rename(folder)
        return folder
    path = Path(section.path or "")
    if (path / "config.json").is_file():
        return path
    local = path.exists() or path.is_absolute() or str(section.path).startswith(".")
    if local or os.environ.get("HF_HUB_OFFLINE") == "1":
        raise MissingFileError(
            f"model.path '{section.path}' is not a model folder (no config.json in it); "
            "give a Hugging Face folder, or a hub id with the network allowed (HF_HUB_OFFLINE unset)."
        )
    hub = need("huggingface_hub", "train", "fetching a model")
    return Path(hub.snapshot_download(str(section.path)))


def selector_of(section: DifficultySelector | ShuffleSelector, tasks: Sequence[Task], seed: int) -> Selector:
    """The task selector."""
    if isinstance(section, ShuffleSelector):
        return Shuffle(tasks, seed=seed)
    return Difficulty(tasks, seed=seed, **section.model_dump(exclude={"use"}))


def placement_of(recipe: RunRecipe, run_id: str, buffer: Buffer, opened: ExitStack) -> Placement:
    """Where the roles run and, if elsewhere, a hub they reach the buffer by; both end with `opened`."""
    from rft_data.placement import Surroundings, make_placement

    hub = None
    if recipe.placement.use != "inline":
        from rft_data.hub.server import HubServer

        server = HubServer(buffer, host=_hub_host(recipe.placement.use))
        opened.callback(server.close)
        server.start()
        hub = (server.address, server.token)
    environment = {**_PROCESS, **{name: os.environ[name] for name in _PASSED_ON if name in os.environ}}
    placement = make_placement(recipe.placement.use, Surroundings(run_id, buffer, hub, environment))
    opened.callback(placement.close)
    return placement


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
    stage: GrpoStage,
    model: Path,
    checkpoints: Path,
    resume_from: Path | None,
    pipeline_hash: str,
) -> RoleSpec:
    """The trainer of the online stage, from a checkpoint if there is one."""
    sampled = recipe if isinstance(recipe, TrainRecipe) else recipe.explorer
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
        "deadline_s": recipe.deadlines.step_s,
        # where roles take turns the trainer has every core; else as many as it was given
        "threads": None if recipe.placement.use == "inline" else max(1, int(recipe.placement.trainer.cpus)),
    }
    return replace(trainer_place(recipe), arguments=arguments)


def max_uses_of(recipe: RunRecipe) -> int:
    """How often the recipe's sampler may lease one group."""
    if isinstance(recipe, OnlineRecipe | TrainRecipe):
        return make_policy(recipe.sampler.use, recipe.sampler.args).max_uses
    return 1


def mixed_in(recipe: OnlineRecipe | TrainRecipe) -> list[str]:
    """The other runs whose groups the sampler mixes in."""
    parts = recipe.sampler.args.get("parts", {}) if recipe.sampler.use == "mix" else {}
    return sorted({name.partition("/")[0] for name in parts} - {OWN})


def sampler_of(
    recipe: OnlineRecipe | TrainRecipe,
    stage: GrpoStage,
    buffer: Buffer,
    ledger: Ledger,
    versions: VersionRegistry,
    at: Position,
) -> Sampler:
    """The version-aware sampler, its book as the run left it. Stored groups have no bound of staleness."""
    others = [group for run_id in mixed_in(recipe) for group in stored_groups(buffer, run_id)]
    sampler = make_sampler(
        recipe.sampler.use,
        recipe.sampler.args,
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


def experience_pipeline(recipe: PlayingRecipe | TrainRecipe) -> OperatorPipeline:
    """The operators of `experience_ops`, checked before anything runs."""
    from ops.pipeline import OperatorPipeline

    return OperatorPipeline(
        recipe.experience_ops, name="experience_ops", allow_unsafe=recipe.allow_unsafe_ops
    )


def check_explorer(section: ExplorerSection) -> None:
    """Build rewards and limits, so that a mistake shows before any work.

    Raises: RecipeError, UnknownComponentError.
    """
    from explorers.limits import limits_of
    from explorers.rewards import is_trusted, make_reward

    limits_of(section.limits, section.group_size)
    for reward in section.reward:
        if ":" not in reward.use or is_trusted(reward.use):  # other people's code stays out of this process
            make_reward(reward.use, reward.args)


def check_stages(recipe: OnlineRecipe | TrainRecipe) -> None:
    """Build every stage's TRL config, so that a mistake shows before any work.

    Raises: RecipeError.
    """
    need("trl", "train", "training")
    from trainers.grpo_config import grpo_config
    from trainers.off_policy import off_policy_of
    from trainers.sft import sft_config

    folder = Path(recipe.run_dir)
    group_size = recipe.group_size if isinstance(recipe, TrainRecipe) else recipe.explorer.group_size
    for stage in recipe.stages:
        if isinstance(stage, SftStage):
            sft_config(folder, options=stage.trl, seed=recipe.seed)
        else:
            rows = stage.groups_per_step * group_size
            config = grpo_config(
                folder, steps=stage.steps, rows_per_step=rows, options=stage.trl, seed=recipe.seed
            )
            off_policy_of(stage.off_policy.model_dump(), config)


def task_pipeline(recipe: TasksRecipe) -> OperatorPipeline:
    """The operators of `task_ops`; Data-Juicer's read the column `text`."""
    from ops.pipeline import OperatorPipeline

    return OperatorPipeline(
        recipe.task_ops, name="task_ops", text_column="text", allow_unsafe=recipe.allow_unsafe_ops
    )
