"""The arguments RECIPE and key=value of the commands that read a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.completion import recipe_keys, recipe_names


def shipped_or_file(path: Path) -> Path:
    """The file at `path`, or else the shipped recipe of that name."""
    if path.exists() or len(path.parts) != 1:
        return path
    from rft_data.recipe.layers import named_recipe  # loads YAML, which not every command needs

    return named_recipe(path)


RecipePath = Annotated[
    Path,
    typer.Argument(
        help="A recipe file, or the name of a shipped recipe (rft recipe list).",
        callback=shipped_or_file,
        autocompletion=recipe_names,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to the recipe: key.path=value, ~key.path (deletes it), OVERLAY.yaml ...",
        autocompletion=recipe_keys,
    ),
]
