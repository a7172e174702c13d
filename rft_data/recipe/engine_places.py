"""What `rft recipe explain` says about the processes and devices of the engines."""

from __future__ import annotations

from collections.abc import Iterator

from explorers.engines.parallel import parallel_of
from rft_data.recipe.kinds import with_explorers
from rft_data.recipe.recipe import Recipe


def engine_lines(recipe: Recipe) -> Iterator[str]:
    """One line about the engine of each explorer; none where it is one process with its explorer."""
    playing = with_explorers(recipe)
    if playing is None or playing.explorer.engine.use != "vllm":
        return
    spread = parallel_of(playing.explorer.engine.options)
    if not spread.served:
        return
    place = recipe.placement.explorers if hasattr(recipe, "placement") else None
    count, gpus = (place.most, place.gpus) if place is not None else (1, 0.0)
    kind = "GPUs" if gpus else "CPU workers"
    yield (
        f"# engine vllm, served: {spread}; for each of {count} explorers {spread.devices} {kind} and "
        f"{spread.processes} processes beside it ({spread.devices} workers, {spread.data} engine cores"
        f"{', a coordinator' if spread.data > 1 else ''}); in all {count * spread.devices} {kind}, "
        f"{count * (1 + spread.processes)} processes"
    )
