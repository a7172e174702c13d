"""How much memory a run needs where: for its trainer, its engines and its reward models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from explorers.engines.parallel import parallel_sizes
from rft_data.core.gpus import gpu_number
from rft_data.recipe.modes import TrainingRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.run.outlook.batches import micro_batch
from rft_data.run.outlook.memory import Training, cache_bytes_a_token, training_memory, width
from rft_data.run.outlook.model_size import Look, ModelSize, folder_size

_MOST_AT_A_TIME = 256
"""Sequences that an engine runs at a time where the recipe does not say."""


@dataclass(frozen=True, slots=True)
class Place:
    """One process, or several alike, and what each needs."""

    name: str
    count: int
    gpus: float
    """Of each."""
    parts: Mapping[str, int]
    """Bytes, by what they are for."""
    shared: bool = False
    """Whether it is on the one GPU of a run in one process."""

    @property
    def total(self) -> int:
        """Bytes of one process."""
        return sum(self.parts.values())


def places(
    recipe: TrainingRecipe, size: ModelSize, look: Look = folder_size, *, shared_gpu: bool
) -> Iterator[Place]:
    """The trainer, the engines, and the reward models on devices of their own.

    Args: look: sizes up the models of rewards. shared_gpu: the run is one process on a machine with a GPU,
        on which it trains and samples.
    """
    trainer, explorers = recipe.placement.trainer, recipe.placement.explorers
    found = _trainer(recipe, size, 1 if shared_gpu else trainer.gpus / trainer.processes)
    yield replace(found, shared=shared_gpu)
    if recipe.explorer is not None:
        engine = _engine(recipe, size, 1 if shared_gpu else explorers.gpus)
        yield from _beside_rewards(recipe, replace(engine, shared=shared_gpu), look)


def _trainer(recipe: TrainingRecipe, size: ModelSize, gpus: float) -> Place:
    stage, place = recipe.rl, recipe.placement.trainer
    how = Training(
        options=stage.trl,
        lora=stage.lora,
        reference=stage.kl is not None or stage.teacher is not None or bool(stage.trl.get("beta")),
        critic=stage.critic is not None and stage.critic.use == "separate",
        on_gpu=gpus > 0,
        processes=place.processes,
        shard=place.shard is not None,
    )
    return Place("trainer", place.processes, gpus, training_memory(size, how, micro_batch(recipe)))


def _engine(recipe: OnlineRecipe, size: ModelSize, gpus: float) -> Place:
    engine, explorers = recipe.explorer.engine, recipe.placement.explorers
    default = "bfloat16" if gpus else "float32"
    dtype = engine.options.get("dtype")
    dtype = default if dtype in (None, "auto") else dtype
    given = engine.options.get("max_num_seqs")
    bound = given if isinstance(given, int) else _MOST_AT_A_TIME
    groups = recipe.rl.groups_per_step * (recipe.sync.max_staleness + 1)
    sequences = min(bound, -(-groups * recipe.explorer.group_size // explorers.least))
    cache = cache_bytes_a_token(size, dtype) * sequences * engine.max_model_len
    parts = {
        "weights": size.parameters * width(dtype),
        f"cache of {sequences} sequences of {engine.max_model_len:,} tokens": cache,
    }
    return Place(f"engine '{engine.use}'", explorers.most, gpus, parts)


def _beside_rewards(recipe: OnlineRecipe, engine: Place, look: Look) -> Iterator[Place]:
    """The engine, with the reward models on its GPU, and the reward models elsewhere, by device."""
    first_own = _engine_devices(recipe) if engine.gpus else 0
    with_engine: dict[str, int] = {}
    elsewhere: dict[int | None, dict[str, int]] = {}
    for one in recipe.explorer.reward:
        size = look(Path(str(one.args.get("model")))) if one.use == "reward_model" else None
        if size is None:
            continue
        number = gpu_number(str(one.args.get("device", "cpu")))
        if number is not None and number < first_own:
            with_engine[f"reward '{one.stored_as}'"] = 4 * size.parameters
        else:
            elsewhere.setdefault(number, {})[one.stored_as] = 4 * size.parameters
    own = 0 if engine.shared else sum(number is not None for number in elsewhere)
    gpus = engine.gpus - own if engine.gpus > own else engine.gpus
    yield replace(engine, gpus=gpus, parts={**engine.parts, **with_engine})
    for number, models in elsewhere.items():
        alone = len(models) == 1
        name = f"reward{'' if alone else 's'} {', '.join(map(repr, models))}"
        parts = {"weights" if alone else f"weights of '{name}'": count for name, count in models.items()}
        yield Place(name, recipe.placement.explorers.most, 0 if number is None else 1, parts)


def _engine_devices(recipe: OnlineRecipe) -> int:
    """How many GPUs the engine takes, where its explorer has any."""
    engine = recipe.explorer.engine
    return parallel_sizes(engine.options).devices if engine.use == "vllm" else 1
