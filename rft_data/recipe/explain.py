"""What a recipe really says: every value, and who set it (the recipe, an algorithm's preset, a default)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rft_data.recipe.algorithms import algorithm_of
from rft_data.recipe.load import load_recipe, read_tree
from rft_data.recipe.modes import TrainRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.presets import OFFLINE, with_preset


def explain(path: Path, overrides: Sequence[str] = ()) -> list[str]:
    """One line for each value, as `key.path = value  # who set it`; the keys are those of overrides.

    Raises: what load_recipe raises.
    """
    recipe, written = load_recipe(path, overrides), read_tree(path, overrides)
    trains = isinstance(recipe, OnlineRecipe | TrainRecipe)
    preset = with_preset(written, explores=isinstance(recipe, OnlineRecipe)) if trains else written
    lines = []
    for stage in getattr(recipe, "stages", []):
        if stage.algorithm not in OFFLINE:
            algorithm = algorithm_of(stage.algorithm)
            lines.append(f"# {stage.algorithm}: {algorithm.summary} ({algorithm.paper})")
    for key, value in _leaves(recipe.saved()):
        name = ".".join(str(part) for part in key)
        origin = _origin(key, written, preset)
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}  # {origin}")
    return lines


def _origin(key: Sequence[Any], written: Any, preset: Any) -> str:
    if key[0] == "experience_ops" and len(key) > 2:  # a preset may move them
        return "recipe" if any(key[2] in entry for entry in written.get("experience_ops", [])) else "preset"
    if not _has(preset, key):
        return "default"
    return "recipe" if _has(written, key) else "preset"


def _leaves(node: object, key: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], object]]:
    """Every value that is no map or list of its own, with its place; empty ones are values."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(value, (*key, name))
    elif isinstance(node, list) and node:
        for place, value in enumerate(node):
            yield from _leaves(value, (*key, place))
    else:
        yield key, node


def _has(tree: Any, key: Sequence[Any]) -> bool:
    for part in key:
        inside = part < len(tree) if isinstance(tree, list) else isinstance(tree, dict) and part in tree
        if not inside:
            return False
        tree = tree[part]
    return True
