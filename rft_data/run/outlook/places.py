"""How much memory a run needs for its trainer, its engines and its reward models, and on which device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from explorers.engines.parallel import parallel_sizes
from rft_data.core.gpus import gpu_number
from rft_data.recipe.modes import ExplorerRecipe, TrainingRecipe
from rft_data.run.outlook.batches import micro_batch
from rft_data.run.outlook.memory import Training, cache_bytes_a_token, training_memory, width
from rft_data.run.outlook.model_size import Look, ModelSize

_MOST_AT_A_TIME = 256
"""How many sequences an engine runs at a time, where the recipe does not say."""
_VLLM_SHARE = 0.92
"""The share of a GPU's memory that vLLM takes, where the recipe does not say."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of an engine that queues the sequences that do not fit into it."""

    weights: int
    """Bytes of the weights on each device, which leave the rest to the cache."""
    sequences: int
    """How many sequences the run asks for at a time."""
    each: int
    """Bytes of the longest sequence on each device."""
    share: float
    """The share of a GPU's memory that the engine takes for weights and cache together."""


@dataclass(frozen=True, slots=True)
class Place:
    """One process, or several alike, and what each needs."""

    name: str
    count: int
    gpus: float
    """How many GPUs each process has."""
    parts: Mapping[str, int]
    """Bytes, by what they are for."""
    shared: bool = False
    """Whether it is on the one GPU of a run in one process, or on those that `colocate` gives the engine."""
    cache: Cache | None = None
    """The cache of a vLLM engine; None: the process needs all of `parts` at once."""
    devices: int = 1
    """Number of GPUs over which its parts are divided evenly."""
    in_turns: bool = False
    """Whether it trains: only one of the trainer and the offline stages is in memory at a time."""

    @property
    def total(self) -> int:
        """Bytes of one process."""
        return sum(self.parts.values())

    @property
    def on_each(self) -> int:
        """Bytes on each of its devices."""
        return self.total // self.devices


def together(found: Sequence[Place], bytes_of: Callable[[Place], int]) -> int:
    """Bytes of places that are in memory together; of those that take turns, only the largest counts."""
    beside = sum(bytes_of(one) for one in found if not one.in_turns)
    return beside + max((bytes_of(one) for one in found if one.in_turns), default=0)


def trainer_place(recipe: TrainingRecipe, size: ModelSize, *, shared_gpu: bool) -> Place:
    """The trainer of the stage that trains by reinforcement.

    Args: shared_gpu: the run is one process on a machine with a GPU, on which it trains and samples.
    """
    stage, place = recipe.rl, recipe.placement.trainer
    gpus = 1 if shared_gpu else place.gpus / place.processes
    how = Training(
        options=stage.trl,
        lora=stage.lora,
        reference=stage.kl is not None or stage.teacher is not None or bool(stage.trl.get("beta")),
        critic=stage.critic is not None and stage.critic.use == "separate",
        on_gpu=gpus > 0,
        processes=place.processes,
        shard=place.shard is not None,
    )
    parts = training_memory(size, how, micro_batch(recipe))
    # with `colocate` it has the GPUs for itself while it is awake: the engine sleeps
    return Place("trainer", place.processes, gpus, parts, shared_gpu, in_turns=True)


def engine_places(
    recipe: ExplorerRecipe, size: ModelSize, look: Look, sequences: int, *, shared_gpu: bool
) -> Iterator[Place]:
    """The engines, and the reward models on devices of their own.

    Args: look: gives the size of a reward's model. sequences: how many the run asks for at a time.
        shared_gpu: as in `trainer_place`.
    """
    engine, explorers = recipe.explorer.engine, recipe.placement.explorers
    gpus = 1 if shared_gpu else explorers.gpus
    dtype = engine.options.get("dtype")
    dtype = ("bfloat16" if gpus else "float32") if dtype in (None, "auto") else dtype
    given = engine.options.get("max_num_seqs")
    at_a_time = min(given if isinstance(given, int) else _MOST_AT_A_TIME, -(-sequences // explorers.least))
    each = cache_bytes_a_token(size, dtype) * engine.max_model_len
    copies = parallel_sizes(engine.options).data if engine.use == "vllm" else 1
    devices = _engine_devices(recipe) if gpus > 1 else 1
    parts = {
        "weights": size.parameters * width(dtype) * copies,
        f"cache of {at_a_time} sequences of {engine.max_model_len:,} tokens": each * at_a_time,
    }
    share = engine.options.get("gpu_memory_utilization", _VLLM_SHARE)
    cache = Cache(parts["weights"] // devices, at_a_time, each // devices, float(str(share)))
    place = Place(
        f"engine '{engine.use}'",
        explorers.most,
        gpus,
        parts,
        shared=shared_gpu or recipe.placement.colocate,
        cache=cache if engine.use == "vllm" else None,
        devices=devices,
    )
    yield from _beside_rewards(recipe, place, look)


def _beside_rewards(recipe: ExplorerRecipe, engine: Place, look: Look) -> Iterator[Place]:
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


def _engine_devices(recipe: ExplorerRecipe) -> int:
    """How many GPUs one engine takes, where its explorer has any."""
    engine = recipe.explorer.engine
    return parallel_sizes(engine.options).devices if engine.use == "vllm" else 1
