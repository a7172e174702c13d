"""The `trl` of a stage against the files of the installed TRL and transformers, which are not loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rft_data.core.lookup import suggest
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.source_code import class_node, fields, fits, parsed
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.presets import OFFLINE
from trainers.models.loss_types import unknown_loss
from trainers.models.owned import LOADING_OWNED, ONE_ITERATION, OWNED_BY_STAGE

_CONFIGS: Mapping[str, tuple[str, str]] = {
    "rl": ("grpo_config.py", "GRPOConfig"),
    "sft": ("sft_config.py", "SFTConfig"),
    "dpo": ("dpo_config.py", "DPOConfig"),
    "kto": ("kto_config.py", "KTOConfig"),
    "reward_model": ("reward_config.py", "RewardConfig"),
}

_ALSO_TAKES: Mapping[str, type] = {"fsdp": bool}
"""Types that transformers takes, by its own documentation, beside those that it annotates."""


def trl_problems(tree: Tree) -> Iterator[Problem]:
    """Options that TRL does not have, that a recipe may not set, or that have a wrong type."""
    for loc, stage in entries(tree, "stages"):
        options = value(stage, "trl")
        if not isinstance(options, dict):
            continue
        kind = str(stage["algorithm"]) if stage.get("algorithm") in OFFLINE else "rl"
        known = _known(kind)
        for name, given in options.items():
            if problem := _wrong(kind, known, str(name), given):
                yield Problem((*loc, "trl", str(name)), problem)
        loading = value(options, "model_init_kwargs")
        for name in loading if isinstance(loading, dict) else ():
            if name in LOADING_OWNED:
                problem = f"it cannot be set here: {LOADING_OWNED[name]}; remove it"
                yield Problem((*loc, "trl", "model_init_kwargs", str(name)), problem)


def _wrong(kind: str, known: Mapping[str, ast.expr] | None, name: str, given: object) -> str:
    owned = OWNED_BY_STAGE[kind]
    if name in owned:
        return f"it cannot be set here: {owned[name]}; remove it"
    if known is None:
        return ""
    if name not in known:
        hint = suggest(name, known.keys() - owned.keys())
        return f"TRL's {_CONFIGS[kind][1]} has no option '{name}';{hint or ' remove it'}"
    if not fits(given, known[name]) and not isinstance(given, _ALSO_TAKES.get(name, ())):
        return f"found {given!r} ({type(given).__name__}); TRL wants {ast.unparse(known[name])}"
    if name == "num_iterations" and given not in (None, 1):
        return f"found {given}; it {ONE_ITERATION}"
    return unknown_loss(kind, given) if name == "loss_type" else ""


@cache
def _known(kind: str) -> Mapping[str, ast.expr] | None:
    """Fields of a config with those of its bases; None without TRL, or where a file has no such class."""
    trl, transformers = find_spec("trl"), find_spec("transformers")
    if trl is None or transformers is None:
        return None
    file, name = _CONFIGS[kind]
    of_trl = Path(str(trl.origin)).parent / "trainer"
    parts = [
        (Path(str(transformers.origin)).parent / "training_args.py", "TrainingArguments"),
        (of_trl / "base_config.py", "_BaseConfig"),
        (of_trl / file, name),
    ]
    found: dict[str, ast.expr] = {}
    for path, one in parts:
        node = class_node(parsed(path), one) if path.is_file() else None
        if node is None:
            return None
        found.update(fields(node))
    return found
