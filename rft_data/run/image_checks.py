"""Whether a run whose tasks show images has a model and an engine that take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.hub_cache import local_folder
from rft_data.core.images import REFERENCE, image_ids
from rft_data.core.model_folder import takes_images
from rft_data.core.rows import Task
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.run.parts import AnyModel

_TAKES = "vllm"
"""The built-in engine that shows images to a model."""


def check_recipe_images(tasks: Iterable[Task], recipe: ExplorerRecipe) -> None:
    """`check_images` before a run, with the model that a recipe plays as far as it is on this disk."""
    played, engine = recipe.played, recipe.explorer.engine
    folder = Path("model.build") if played.build is not None else local_folder(str(played.path))
    check_images(tasks, folder, engine.use, engine.options)


def check_images(tasks: Iterable[Task], model: AnyModel | None, use: str, options: Mapping[str, Any]) -> None:
    """Look at the tasks, and at engine and model if one of them shows an image.

    Args: model: None: not known.
    Raises: RecipeError when a built-in engine or the model takes none; RowError for an image that is not
        stored.
    """
    first = first_with_images(tasks)
    if first is None:
        return
    engines = [str(one["use"]) for one in options["engines"]] if use == "routed" else [use]
    blind = [
        f"the engine '{name}' takes none: set explorer.engine.use to {_TAKES}"
        for name in engines
        if ":" not in name and name != _TAKES
    ]
    if isinstance(model, Path) and not takes_images(model):
        blind.append(
            f"the model in '{model}' takes none (its config.json has no vision_config): give a "
            "vision-language model, or tasks without images"
        )
    if blind:
        raise RecipeError(f"tasks of '{first.taskset}' show images, and {', and '.join(blind)}.")


def first_with_images(tasks: Iterable[Task]) -> Task | None:
    """The first task whose prompt shows an image.

    Raises: RowError for an image that is not stored; RecipeError for stored ones that no prompt shows.
    """
    first = None
    for task in tasks:
        shown = _shows(task)
        first = first or (task if shown else None)
        if not shown and _beside(task):
            raise RecipeError(
                f"task '{task.task_id}' of '{task.taskset}' has images in its metadata that its prompt does "
                "not show: they were imported from a column beside it. Write its messages with the images as "
                "parts, or read the file with source 'jsonl' and the taskset's 'images'."
            )
    return first


def _shows(task: Task) -> bool:
    try:
        return bool(image_ids(task.messages))
    except RowError as err:
        raise RowError(f"task '{task.task_id}' of '{task.taskset}': {err}") from err


def _beside(task: Task) -> bool:
    """Whether a task has stored images that are not in its messages."""
    listed = task.metadata.get("images")
    return isinstance(listed, list) and any(
        isinstance(one, str) and REFERENCE.fullmatch(one) for one in listed
    )
