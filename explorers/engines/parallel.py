"""How many devices a vLLM engine uses, read from its options without importing vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rft_data.core.errors import RecipeError

TENSOR, PIPELINE, DATA = "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
EXPERTS = "enable_expert_parallel"
SIZES = (TENSOR, PIPELINE, DATA)
"""Options of vLLM that say over how many devices it spreads; EXPERTS divides experts over the same ones."""

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Parallel:
    """How one engine is divided."""

    tensor: int = 1
    """Devices that share each layer."""
    pipeline: int = 1
    """Groups of layers, one after the other."""
    data: int = 1
    """Whole copies of the model, each with an engine core of its own."""
    experts: bool = False
    """Whether the devices share the experts of a layer instead of dividing each expert."""

    @property
    def devices(self) -> int:
        """How many devices it needs, each with a worker process."""
        return self.tensor * self.pipeline * self.data

    @property
    def served(self) -> bool:
        """Whether vLLM runs in processes of its own, beside the explorer's."""
        return self.devices > 1

    @property
    def processes(self) -> int:
        """Processes that vLLM starts: workers, engine cores, and a coordinator of several cores."""
        return self.devices + self.data + (self.data > 1) if self.served else 0

    def __str__(self) -> str:
        named = ((self.tensor, "tensor"), (self.pipeline, "pipeline"), (self.data, "data"))
        sizes = " x ".join(f"{name} {size}" for size, name in named if size > 1)
        return f"{sizes or 'one device'}{', experts divided' if self.experts else ''}"


def parallel_sizes(options: Mapping[str, object]) -> Parallel:
    """The division that an engine's options ask for.

    Raises: RecipeError for a size that is no whole number from 1.
    """
    for name in SIZES:
        size = options.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise RecipeError(f"explorer.engine.options.{name} is {size!r}; give a whole number from 1.")
    sizes = (int(str(options.get(name, 1))) for name in SIZES)
    tensor, pipeline, data = sizes
    return Parallel(tensor, pipeline, data, options.get(EXPERTS) is True)


def unfit(model_path: Path, parallel: Parallel) -> Iterator[tuple[str, str]]:
    """The options by which a model cannot be divided, and why; nothing is known of one that is not here."""
    config = model_path / "config.json"
    if not config.is_file():
        return
    found = json.loads(config.read_text())
    yield from unfit_shape(found.get("text_config") or found, parallel)


def unfit_shape(shape: Mapping[str, object], parallel: Parallel) -> Iterator[tuple[str, str]]:
    """The same of the fields of a model's configuration."""
    heads, layers = shape.get("num_attention_heads"), shape.get("num_hidden_layers")
    if isinstance(heads, int) and heads % parallel.tensor:
        yield (
            TENSOR,
            f"the model has {heads} attention heads, which {parallel.tensor} devices cannot share evenly; "
            f"give one of {_divisors(heads)}",
        )
    if isinstance(layers, int) and layers < parallel.pipeline:
        yield (
            PIPELINE,
            f"the model has {layers} layers, fewer than {parallel.pipeline} devices; give at most {layers}",
        )
    if parallel.experts and not any(shape.get(name) for name in _EXPERT_COUNTS):
        yield EXPERTS, "the model has no experts to divide; remove it"


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
