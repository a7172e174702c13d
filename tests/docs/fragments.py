"""Parts of recipes that pages show: each is put into a whole recipe, which is then checked as any other.

Nothing that a part names is imported or looked for.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rft_data.core.errors import RecipeError
from rft_data.recipe.load import check_recipe

Tree = dict[str, Any]

_RUN: Tree = {"recipe": 1, "name": "shown", "run_dir": "runs/shown", "buffer": {"uri": "runs/shown/buffer"}}
_MODEL: Tree = {"model": {"path": "m"}}
_TASKS: Tree = {
    "tasks": [{"name": "t", "source": {"use": "jsonl", "path": "t.jsonl"}, "heldout": 0.1}],
}
_EXPLORER: Tree = {
    "engine": {"use": "vllm"},
    "group_size": 4,
    "max_tokens": 64,
    "reward": [{"use": "exact_answer"}],
}
_PLAY: Tree = {**_RUN, **_MODEL, **_TASKS, "selector": {"use": "shuffle"}, "explorer": _EXPLORER}
_STAGE: Tree = {"algorithm": "grpo", "groups_per_step": 32, "steps": 100, "checkpoint_every": 50}
_OPS: Tree = {"experience_ops": [{"grpo_advantage_mapper": {}}]}
WHOLE: Mapping[str, Tree] = {
    "online": {**_PLAY, "stages": [_STAGE]},
    "explore": {**_PLAY, **_OPS, "groups": 10},
    "train": {**_RUN, **_MODEL, **_OPS, "explored_by": "looking", "group_size": 4, "stages": [_STAGE]},
    "offline": {**_RUN, **_MODEL, "stages": [{"algorithm": "sft"}]},
    "eval": {**_RUN, **_TASKS, "models": ["m"], "explorer": _EXPLORER},
    "data": {**_RUN, **_TASKS},
}
"""The least of a recipe of each mode."""
INSIDE = ((), ("explorer",), ("stages", 0))
"""Where the keys of a part may stand."""


def shown(body: str) -> Any:
    """The part as a page shows it; `{...}` and `[...]` stand for what is left out."""
    return YAML(typ="safe").load(io.StringIO(body.replace("{...}", "{}").replace("[...]", "[]")))


def mistakes(part: Any, folder: Path) -> list[str]:
    """Why a part fits no recipe: what is wrong with it where it fits best; empty where it fits.

    Args: folder: an empty one, to write in.
    """
    if isinstance(part, list):
        part = {"stages": part}
    if "extends" in part or "recipe" in part:
        return _check(part, folder)
    found = []
    for tree in _recipes(part):
        wrong = _check(tree, folder)
        if not wrong:
            return []
        found.append(wrong)
    least = min(map(len, found))
    return sorted({line for wrong in found if len(wrong) == least for line in wrong})


def _recipes(part: Tree) -> Iterator[Tree]:
    for mode in [part["mode"]] if "mode" in part else WHOLE:
        for path in INSIDE:
            whole = {**WHOLE[mode], "mode": mode}
            if not path:
                yield _merged(whole, part)
            elif path[0] in whole:
                inside = _merged(whole[path[0]][0], part) if len(path) > 1 else _merged(whole[path[0]], part)
                yield {**whole, path[0]: [inside] if len(path) > 1 else inside}


def _merged(whole: Any, part: Any, key: str = "") -> Any:
    """The whole with the part over it; tasksets and stages get what they lack from the whole's first one."""
    if isinstance(whole, dict) and isinstance(part, dict):
        both = whole.keys() & part.keys()
        return {**whole, **part, **{one: _merged(whole[one], part[one], one) for one in both}}
    if key == "stages" and isinstance(part, list):
        return [{**_lacking(one, whole[0]), **one} for one in part]
    if key == "tasks" and isinstance(part, list):
        return [{**whole[0], **one} for one in part]
    return part


def _lacking(stage: Tree, whole: Tree) -> Tree:
    """What a stage that is shown needs besides; an offline stage needs nothing."""
    of_rl = not {"sft", "dpo", "kto", "reward_model"} & {str(stage.get("algorithm", whole["algorithm"]))}
    return {key: value for key, value in whole.items() if of_rl and key not in stage}


def _check(tree: Tree, folder: Path) -> list[str]:
    path = folder / "shown.yaml"
    YAML(typ="safe").dump(tree, path)
    try:
        check_recipe(path)
    except RecipeError as err:
        return str(err).splitlines()[1:] or [str(err)]
    return []
