"""Mistakes in the files of a run's models: no tokenizer, or a context that is too short."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rft_data.core.hub_cache import local_folder
from rft_data.core.model_folder import has_tokenizer, longest_sequence, most_positions
from rft_data.recipe.preflight.files import matching
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, value
from rft_data.recipe.section import Loc
from rft_data.recipe.sections import ENDPOINT

_ENGINE = ("explorer", "engine")
_LENGTH = "max_model_len"
_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""The environment variable that lets vLLM go on beyond a model's context."""


def model_problems(tree: Tree) -> Iterator[Problem]:
    """Models without a tokenizer, and an engine's length that is above their context."""
    if value(tree, *_ENGINE, "use") == ENDPOINT:
        return
    for loc, path in _models(tree):
        folder = local_folder(path)
        if folder is None or not (folder / "config.json").is_file():
            continue  # where models are looked for says so
        if Path(path).is_dir() and not has_tokenizer(folder):
            yield Problem(
                loc,
                f"'{path}' has no tokenizer (no tokenizer.json, tokenizer.model or vocabulary file in it), "
                "and prompts are made of its tokens; copy the files of the model's tokenizer there too",
            )
        longest = longest_sequence(folder)
        if longest is not None:
            ends = most_positions(folder) is not None
            yield from too_long(tree, longest, f"'{path}'", ends=ends)


def built_too_short(tree: Tree) -> Iterator[Problem]:
    """An engine's length that is above the context of a model that is built."""
    built = value(tree, "model", "build")
    if isinstance(built, dict):
        longest = built.get("max_position_embeddings", 256)
        if isinstance(longest, int):
            yield from too_long(tree, longest, "model.build", ", or model.build.max_position_embeddings more")


def too_long(
    tree: Tree, longest: int, model: str, or_more: str = "", *, ends: bool = False
) -> Iterator[Problem]:
    """The length of an engine that looks at it, if it is above the longest sequence of a model (tokens).

    Args: ends: the model has no position beyond, so that the engine `transformers` would fail there.
    """
    engine = value(tree, *_ENGINE)
    if not isinstance(engine, dict) or not (
        _judged_by_vllm(engine) or (ends and _plays(engine, "transformers"))
    ):
        return
    wanted = engine.get(_LENGTH, 256)
    if isinstance(wanted, int) and wanted > longest:
        written = _LENGTH in engine
        yield Problem(
            (*_ENGINE, _LENGTH) if written else _ENGINE,
            f"{_LENGTH} is {wanted}{'' if written else ' (its default)'}, and the model {model} takes at "
            f"most {longest} tokens; give {longest} or less{or_more}",
        )


def _judged_by_vllm(engine: Tree) -> bool:
    """Whether vLLM would refuse a length; one that is told another configuration is not judged."""
    allowed = os.environ.get(_LONGER, "0") not in ("", "0")
    return not allowed and any(
        value(one, "options", "hf_overrides") is None for one in _plays(engine, "vllm")
    )


def _plays(engine: Tree, use: str) -> list[Tree]:
    """The engines of a kind among those of a section."""
    options = engine.get("options")
    listed = value(options, "engines") if engine.get("use") == "routed" else [engine]
    every = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [one for one in every if one.get("use") == use]


def _models(tree: Tree) -> Iterator[tuple[Loc, str]]:
    """Every model that is played or trained, with its place."""
    path = value(tree, "model", "path")
    if isinstance(path, str):
        yield ("model", "path"), path
    models = value(tree, "models")
    for place, pattern in enumerate(models if isinstance(models, list) else []):
        if isinstance(pattern, str):
            yield from ((("models", place), str(one)) for one in matching(pattern))
