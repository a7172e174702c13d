"""Recipe sections to tasks, selectors, models and operators: the pieces that `assembly.py` puts together.

Heavy packages are imported inside the functions, so that reading a recipe costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.recipe.modes import OperatorRecipe, ShapingRecipe
from rft_data.recipe.recipe import TasksRecipe
from rft_data.recipe.running import OperatorLimits
from rft_data.recipe.sections import Model, Operators, SelectorSection
from rft_data.recipe.task_sources import (
    AnyTable,
    JsonLines,
    ReasoningGym,
    ServedTasks,
    StoredTasks,
    TableSource,
    VerifiersTasks,
)
from rft_data.recipe.tasksets import Taskset
from rft_data.run.stored_tasks import stored_tasks
from rft_data.run.taskset_rows import store_table_images, table_tasks
from rft_data.tasks.selectors import make_selector
from rft_data.tasks.selectors.interfaces import OpenSelector
from rft_data.tasks.sources import reasoning_gym_tasks
from rft_data.tasks.verifiers_environment import verifiers_tasks
from rft_data.weights.adapter import adapter_in

if TYPE_CHECKING:
    from ops.runtime.limits import Limits
    from ops.runtime.pipeline import OperatorPipeline
    from rft_data.buffer import Buffer

PROCESS_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # vLLM's CPU workers spin; two threads cost double for the same speed
    "TORCHDYNAMO_DISABLE": "1",  # else vLLM compiles its logprob rank kernel at the first batch (10 s)
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is stepped in this process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else the workers of every engine are bound to the first cores
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # else vLLM reports each start on a GPU to its makers
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LANCE_LOG": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "VF_LOG_LEVEL": "CRITICAL",  # verifiers logs a line for what a row says already
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",  # a bar per batch and per file would bury the run's own progress
}


_SHAPE_NOTHING = ("_filter", "_deduplicator", "_selector", "_advantage_mapper")
"""Ends of names of operators that leave rewards alone."""


def prepare_process() -> None:
    """Set what libraries read from the environment at import; a value already set stays.

    A model is fetched from a hub only if the recipe names a hub id and HF_HUB_OFFLINE is not set.
    """
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def taskset_tasks(section: Taskset, buffer: Buffer | None = None, run: str = "") -> list[Task]:
    """Read one taskset.

    Args: buffer: where stored tasks are. run: its run, whose own tasks are left out.
    Raises: MissingFileError, RowError and other RftErrors where the source is not what the section says.
    """
    if isinstance(section.source, StoredTasks):
        if buffer is None:
            raise RecipeError(f"taskset '{section.name}' is stored in a buffer, and there is none to read.")
        tasks = stored_tasks(buffer, section.name, heldout=section.heldout, run=run, choice=section.source)
    else:
        tasks = _read_tasks(section, section.source)
    if section.workflow is None or isinstance(section.source, AnyTable):
        return tasks  # those of a table have theirs: it may be a column's
    return [replace(one, workflow=section.workflow) for one in tasks]


def _read_tasks(
    section: Taskset, source: ReasoningGym | VerifiersTasks | ServedTasks | JsonLines | TableSource
) -> list[Task]:
    if isinstance(source, ServedTasks):
        return [Task(section.name, ({"role": "user", "content": "What a client of the run's server asks."},))]
    if isinstance(source, VerifiersTasks):
        return verifiers_tasks(
            source.environment,
            source.args,
            size=source.size,
            taskset=section.name,
            heldout=section.heldout,
            difficulty=section.difficulty,
        )
    if isinstance(source, ReasoningGym):
        return reasoning_gym_tasks(
            source.dataset,
            size=source.size,
            seed=source.seed,
            args=source.args,
            taskset=section.name,
            difficulty=section.difficulty,
            heldout=section.heldout,
            metadata=section.metadata,
        )
    return table_tasks(section, source)


def store_task_images(sections: Sequence[Taskset], buffer: Buffer) -> None:
    """Store the images that tasks of tables show, each once."""
    for section in sections:
        if isinstance(section.source, AnyTable):
            store_table_images(section, section.source, buffer.add_payload)


def model_folder(section: Model, run_dir: Path, seed: int) -> Path:
    """The Hugging Face folder of the starting policy, built now if the recipe says so.

    Raises: MissingFileError when a local path has no model in it.
    """
    if section.build is not None:
        need("torch", "train", "building a model")
        from trainers.models.tiny_model import build_tiny_model

        folder, draft = run_dir / "model", run_dir / ".draft-model"
        if not folder.is_dir():
            build_tiny_model(draft, seed=seed, **section.build.model_dump(exclude={"use"}))
            draft.rename(folder)
        return folder
    path = Path(section.path or "")
    if (path / "config.json").is_file():
        return path
    local = path.exists() or path.is_absolute() or str(section.path).startswith(".") or len(path.parts) > 2
    if local or os.environ.get("HF_HUB_OFFLINE") == "1":
        raise MissingFileError(
            f"model.path '{section.path}' is not a model folder (no config.json in it); "
            "give a Hugging Face folder, or a hub id with the network allowed (HF_HUB_OFFLINE unset)."
        )
    hub = need("huggingface_hub", "train", "fetching a model")
    try:
        return Path(hub.snapshot_download(str(section.path)))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as err:
        first = str(err).strip().partition("\n")[0]
        raise MissingFileError(
            f"model.path '{section.path}' is no folder, seen from {Path.cwd()}, and could not be fetched "
            f"from Hugging Face ({type(err).__name__}: {first}); give a model's folder, or a hub id."
        ) from err


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


def task_selector(section: SelectorSection, tasks: Sequence[Task], seed: int) -> OpenSelector:
    return make_selector(section.use, section.args, tasks, seed)


def experience_pipeline(recipe: OperatorRecipe, store: Buffer | None) -> OperatorPipeline:
    """The operators of `experience_ops`, checked; `store` is for those that look at stored rows.

    Raises: RecipeError, also for one that compares groups where they are judged one by one.
    """
    from ops.runtime.pipeline import OperatorPipeline

    pipeline = OperatorPipeline(
        recipe.experience_ops,
        name="experience_ops",
        allow_unsafe=recipe.allow_unsafe_ops,
        limits=_operator_limits(recipe.op_limits, recipe.experience_ops),
        store=store,
    )
    if (found := recipe.judged_one_by_one) and pipeline.batch_wide:
        raise RecipeError(
            f"operators {pipeline.batch_wide} of 'experience_ops' compare the groups of a batch, and with "
            f"{found} each group is judged when it is finished: their results would depend on timing. Make "
            "the run synchronous (mode: online, sync: {every: 1, max_staleness: 0}), or let them compare "
            "within a group (grpo_advantage_mapper: {scale: group})."
        )
    return pipeline


def shaping_operators(recipe: ShapingRecipe) -> Operators:
    """The operators of `experience_ops` that may shape the reward of an evaluated rollout."""
    return [one for one in recipe.experience_ops if not any(name.endswith(_SHAPE_NOTHING) for name in one)]


def shaping_pipeline(recipe: ShapingRecipe, store: Buffer | None) -> OperatorPipeline | None:
    """`shaping_operators`, checked; None without any.

    Those that drop rows or set advantages are left out: nothing is trained on an evaluation.
    """
    from ops.runtime.pipeline import OperatorPipeline

    operators = shaping_operators(recipe)
    if not operators:
        return None
    return OperatorPipeline(
        operators,
        name="experience_ops",
        allow_unsafe=recipe.allow_unsafe_ops,
        limits=_operator_limits(recipe.op_limits, operators),
        store=store,
    )


def task_pipeline(
    recipe: TasksRecipe, operators: Operators, name: str, store: Buffer | None, spread: int = 0
) -> OperatorPipeline:
    """Operators over tasks, checked; Data-Juicer's read the column `text`.

    Args: name: their recipe key. spread: see `OperatorPipeline`.
    """
    from ops.runtime.pipeline import OperatorPipeline

    return OperatorPipeline(
        operators,
        name=name,
        text_column="text",
        allow_unsafe=recipe.allow_unsafe_ops,
        limits=_operator_limits(recipe.op_limits, operators),
        store=store,
        spread=spread,
    )


def _operator_limits(given: Mapping[str, OperatorLimits], operators: Operators) -> dict[str, Limits]:
    """How the operators of one list run."""
    from ops.runtime.limits import Limits

    names = {name for operator in operators for name in operator}
    return {name: Limits(**section.model_dump()) for name, section in given.items() if name in names}
