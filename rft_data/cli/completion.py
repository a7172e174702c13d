"""What a shell completes: names of shipped recipes, runs, operators and keys of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer


def recipe_names(incomplete: str) -> Iterator[str]:
    """Recipe files of this folder, then shipped recipes."""
    from rft_data.recipe.shipped import shipped_recipes

    names = [
        *sorted(str(path) for path in Path().glob(f"{incomplete}*.yaml")),
        *(one.name for one in shipped_recipes()),
    ]
    yield from (name for name in names if name.startswith(incomplete))


def run_folders(incomplete: str) -> Iterator[str]:
    """Folders under `runs` that hold a run."""
    folders = sorted(path.parent for path in Path("runs").glob("*/recipe.json"))
    yield from (str(folder) for folder in folders if str(folder).startswith(incomplete))


def operator_names(incomplete: str) -> Iterator[str]:
    """Operators that a recipe may name."""
    from ops import OPERATOR_MODULES
    from ops.runtime.allowlist import NATIVE_OPERATORS

    yield from (
        name for name in (*OPERATOR_MODULES, *sorted(NATIVE_OPERATORS)) if name.startswith(incomplete)
    )


def recipe_keys(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Keys of the recipe that was named, as overrides write them: `seed=`."""
    from rft_data.core.errors import RftError
    from rft_data.recipe.leaves import dotted, leaves
    from rft_data.recipe.load import check_recipe

    try:
        recipe = check_recipe(Path(ctx.params["recipe"]))
    except (RftError, KeyError, TypeError):  # a shell has no place for an error while one types
        return
    keys = (f"{dotted(key)}=" for key, _ in leaves(recipe.saved()))
    yield from (key for key in keys if key.startswith(incomplete))
