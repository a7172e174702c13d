"""A hash of the code that makes a run's numbers: what samples, scores, judges, chooses and trains.

What stores, moves or shows them (buffer, hub, commands, pages) is not part of it: records would be lost with
every mended sentence on a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from benchmarks.selectors.records import code_version, followed
from explorers.engines.make import ENGINES
from ops import OPERATOR_MODULES
from rft_data.recipe import Recipe
from rft_data.run.role_specs import EXPLORER, TRAINER
from rft_data.sampler.make import POLICIES
from rft_data.tasks.selectors.make import SELECTORS

_ROLES = (TRAINER, EXPLORER, "trainers.offline.offline_role")
_STORY = (
    "rft_data.loop.online",
    "rft_data.loop.evaluation",
    "rft_data.run.online_stage",
    "rft_data.run.offline_stages",
    "rft_data.run.accuracy",
    "ops.runtime.pipeline",
    "trainers.models.tiny_model",
)
_CHILDREN = ("explorers.engines.vllm_worker", "explorers.rewards.reward_child")
"""Modules that are named to another process, by a text that no import shows."""
_WITHIN = (
    "trainers.",
    "explorers.",
    "ops.",
    "recipes.",
    "rft_data.loop.",
    "rft_data.sampler.",
    "rft_data.tasks.",
    "rft_data.weights.",
)


def run_code(recipe: Recipe, *own: str) -> str:
    """The hash for what a recipe names: engine, operators, selector, sampler; `own`: more modules."""
    return _version(_roots(recipe, own))


def code_modules(recipe: Recipe, *own: str) -> set[str]:
    """The modules that the hash covers."""
    return set(followed(_roots(recipe, own), _WITHIN))


@cache
def _version(roots: tuple[str, ...]) -> str:
    return code_version(roots, _WITHIN)


def _roots(recipe: Recipe, own: Sequence[str]) -> tuple[str, ...]:
    named = (*_ROLES, *_STORY, *_CHILDREN, *_named(recipe.model_dump(mode="json")), *own)
    return tuple(sorted({name.partition(":")[0] for name in named}))


def _named(recipe: dict[str, Any]) -> Iterator[str]:
    yield ENGINES[recipe["explorer"]["engine"]["use"]]
    if (selector := recipe["selector"]["use"]) in SELECTORS:
        yield SELECTORS[selector].__module__
    yield POLICIES[recipe["sampler"]["use"]].__module__
    for text in _texts(recipe):
        if text in OPERATOR_MODULES:
            yield OPERATOR_MODULES[text]
        elif ":" in text and text.startswith(("recipes.", "benchmarks.")):
            yield text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
