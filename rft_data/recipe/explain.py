"""Every value of a recipe, and what set it: a line of a file, the command line, a preset or a default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorers.engines.parallel import parallel_sizes
from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.kinds import with_explorers
from rft_data.recipe.layers import read_layers
from rft_data.recipe.leaves import dotted
from rft_data.recipe.load import load_recipe
from rft_data.recipe.modes import TrainRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.presets import OFFLINE, with_preset, written_place
from rft_data.recipe.public_keys import shown_leaves
from rft_data.recipe.recipe import Recipe
from rft_data.recipe.references import filled
from rft_data.recipe.running import PlacementSection
from rft_data.recipe.section import Loc
from rft_data.recipe.sections import Operators
from rft_data.recipe.transports import named_way

PRESET, DEFAULT = "preset", "default"


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a recipe."""

    key: str
    """Its place, as overrides name it."""
    value: object
    """One of the environment is shown as its reference, but for paths and names of models and data."""
    origin: str
    """`file:line`, `command line`, `preset` or `default`."""


def values(path: Path, overrides: Sequence[str] = ()) -> list[Value]:
    """Every value, after presets and defaults, in the order of the recipe's sections.

    Raises: what load_recipe raises.
    """
    recipe = load_recipe(path, overrides)
    origins = _Origins(recipe, path, overrides)
    return [Value(dotted(key), value, origins.find(key)) for key, value in shown_leaves(recipe)]


def explain(path: Path, overrides: Sequence[str] = ()) -> list[str]:
    """The algorithms, what the engines need, and one line for each value, as `key.path = value  # origin`.

    Raises: what load_recipe raises.
    """
    recipe = load_recipe(path, overrides)
    lines = [*_algorithms(recipe), *_engines(recipe), *_weights(recipe)]
    for one in values(path, overrides):
        lines.append(f"{one.key} = {json.dumps(one.value, ensure_ascii=False)}  # {one.origin}")
    return lines


def _algorithms(recipe: Recipe) -> Iterator[str]:
    for stage in getattr(recipe, "stages", []):
        if stage.algorithm not in OFFLINE:
            algorithm = find_algorithm(stage.algorithm)
            yield f"# {stage.algorithm}: {algorithm.summary} ({algorithm.paper})"


def _engines(recipe: Recipe) -> Iterator[str]:
    """One line about the engine of each explorer; none where it is one process with its explorer."""
    playing = with_explorers(recipe)
    if playing is None or playing.explorer.engine.use != "vllm":
        return
    spread = parallel_sizes(playing.explorer.engine.options)
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


def _weights(recipe: Recipe) -> Iterator[str]:
    """How published weights reach explorers that are other processes than the trainer."""
    playing = with_explorers(recipe)
    place: PlacementSection | None = getattr(recipe, "placement", None)
    if playing is None or playing.explorer.base_url is not None or place is None or place.use == "inline":
        return
    use, why = named_way(playing.explorer.engine, place)
    yield f"# weights reach the explorers by '{use}': {why}"


class _Origins:
    """The origin of each value of a recipe."""

    def __init__(self, recipe: Recipe, path: Path, overrides: Sequence[str]) -> None:
        layers = read_layers(path, overrides)
        self._origins = layers.origins
        self._written: Any = filled(layers).tree
        self._operators: Operators = getattr(recipe, "experience_ops", [])
        trains = isinstance(recipe, OnlineRecipe | TrainRecipe)
        explores = isinstance(recipe, OnlineRecipe)
        self._preset = with_preset(self._written, explores=explores) if trains else self._written

    def find(self, key: Loc) -> str:
        """The origin of a value that is in the recipe."""
        if key[0] == "experience_ops" and len(key) > 2:  # a preset may move them
            place = written_place(self._written.get("experience_ops"), self._operators, int(key[1]))
            return PRESET if place is None else self._origins.find((key[0], place, *key[2:])).short
        if not _has(self._preset, key):
            return DEFAULT
        return self._origins.find(key).short if _has(self._written, key) else PRESET


def _has(tree: object, key: Loc) -> bool:
    for part in key:
        if isinstance(tree, list):
            if not isinstance(part, int) or part >= len(tree):
                return False
            tree = tree[part]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            return False
    return True
