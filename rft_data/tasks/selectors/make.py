"""Makes the task selector that a recipe names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import lookup
from rft_data.core.rows import Task
from rft_data.tasks.selectors.adaptive_target import AdaptiveTarget
from rft_data.tasks.selectors.arguments import check_made
from rft_data.tasks.selectors.bandit import Bandit
from rft_data.tasks.selectors.difficulty import Difficulty
from rft_data.tasks.selectors.easy_to_hard import EasyToHard
from rft_data.tasks.selectors.hierarchical import Hierarchical
from rft_data.tasks.selectors.interfaces import OpenSelector
from rft_data.tasks.selectors.interpolated import Interpolated
from rft_data.tasks.selectors.learnability import Learnability
from rft_data.tasks.selectors.mixture import Mixture
from rft_data.tasks.selectors.mopps import Mopps
from rft_data.tasks.selectors.pools import Pools
from rft_data.tasks.selectors.random import Random
from rft_data.tasks.selectors.sequential import Sequential
from rft_data.tasks.selectors.shuffle import Shuffle
from rft_data.tasks.selectors.staged import Staged

SELECTORS: dict[str, Callable[..., OpenSelector]] = {
    "adaptive_target": AdaptiveTarget,
    "bandit": Bandit,
    "difficulty": Difficulty,
    "easy_to_hard": EasyToHard,
    "hierarchical": Hierarchical,
    "interpolated": Interpolated,
    "learnability": Learnability,
    "mixture": Mixture,
    "mopps": Mopps,
    "pools": Pools,
    "random": Random,
    "sequential": Sequential,
    "shuffle": Shuffle,
    "staged": Staged,
}
_COMPOSITE = frozenset({"mixture", "staged"})
"""Selectors that contain other selectors; they get `make_selector` as an argument."""


def make_selector(use: str, args: Mapping[str, object], tasks: Sequence[Task], seed: int) -> OpenSelector:
    """The built-in selector of this name, or a class of your own by import path `module:Class`.

    Called as Class(tasks, seed=seed, **args).
    Raises: UnknownComponentError if there is none; RecipeError if it does not take these arguments, has no
        task to choose from, or is no selector.
    """
    make = lookup(use, SELECTORS, "selector")
    given: dict[str, object] = {"seed": seed, **({"make": make_selector} if use in _COMPOSITE else {})}
    try:
        inspect.signature(make).bind(tasks, **given, **args)
    except TypeError as err:
        takes = [name for name in inspect.signature(make).parameters if name not in {"tasks", *given}]
        raise RecipeError(f"selector '{use}': {err}; it takes {', '.join(takes) or 'no arguments'}.") from err
    try:
        selector = make(tasks, **given, **args)
    except RecipeError:
        raise
    except ValueError as err:
        raise RecipeError(f"selector '{use}': {err}.") from err
    if not isinstance(selector, OpenSelector):
        raise RecipeError(
            f"selector '{use}' makes a {type(selector).__name__}; derive it from "
            "rft_data.tasks.selectors.TaskSelector."
        )
    return selector


def needed_metadata(use: str, args: Mapping[str, Any]) -> set[str]:
    """Fields of the tasks' metadata that a built-in selector reads, with those of selectors inside it."""
    if use == "interpolated":
        defaults = inspect.signature(Interpolated).parameters
        return {str(args.get(name, defaults[name].default)) for name in ("weak", "strong")}
    if use == "hierarchical":
        return {args["embedding"]} if args.get("embedding") else set()
    inside = {"mixture": [args.get("inner") or {}], "staged": args.get("stages", [])}.get(use, [])
    return {
        field for part in inside for field in needed_metadata(part.get("use", ""), part.get("args") or {})
    }


def check_selector(use: str, args: Mapping[str, object]) -> None:
    """Check name and arguments without tasks; a class of your own is not imported and not checked.

    Raises: as `make_selector`.
    """
    check_made(use, args, make_selector)
