"""Every value of a recipe, and where it comes from: the recipe, an algorithm's preset or a default."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.leaves import dotted, leaves
from rft_data.recipe.load import load_recipe, read_tree
from rft_data.recipe.modes import TrainRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.presets import OFFLINE, with_preset
from rft_data.recipe.section import Loc


def explain(path: Path, overrides: Sequence[str] = ()) -> list[str]:
    """One line for each value, as `key.path = value  # origin`; the keys are those of overrides.

    Raises: what load_recipe raises.
    """
    recipe, written = load_recipe(path, overrides), read_tree(path, overrides)
    trains = isinstance(recipe, OnlineRecipe | TrainRecipe)
    preset = with_preset(written, explores=isinstance(recipe, OnlineRecipe)) if trains else written
    lines = []
    for stage in getattr(recipe, "stages", []):
        if stage.algorithm not in OFFLINE:
            algorithm = find_algorithm(stage.algorithm)
            lines.append(f"# {stage.algorithm}: {algorithm.summary} ({algorithm.paper})")
    for key, value in leaves(recipe.saved()):
        origin = _origin(key, written, preset)
        lines.append(f"{dotted(key)} = {json.dumps(value, ensure_ascii=False)}  # {origin}")
    return lines


def _origin(key: Loc, written: Mapping[str, object], preset: object) -> str:
    if key[0] == "experience_ops" and len(key) > 2:  # a preset may move them
        operators = written.get("experience_ops")
        known = isinstance(operators, list) and any(key[2] in entry for entry in operators)
        return "recipe" if known else "preset"
    if not _has(preset, key):
        return "default"
    return "recipe" if _has(written, key) else "preset"


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
