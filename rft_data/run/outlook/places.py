"""How much memory a run needs where: for its trainer, its engines and its reward models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    yield _trainer(recipe, size, 1 if shared_gpu else trainer.gpus / trainer.processes)
    if recipe.explorer is not None:
        yield _engine(recipe, size, 1 if shared_gpu else explorers.gpus)
        yield from _reward_models(recipe, look)


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


def _reward_models(recipe: OnlineRecipe, look: Look) -> Iterator[Place]:
    for one in recipe.explorer.reward:
        if one.use == "reward_model":
            size = look(Path(str(one.args.get("model"))))
            on_gpu = not str(one.args.get("device", "cpu")).startswith("cpu")
            if size is not None:
                parts = {"weights": 4 * size.parameters}
                yield Place(f"reward '{one.stored_as}'", recipe.placement.explorers.most, on_gpu, parts)
