"""`rft train`: `rft run` for recipes that explore nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.edge import edge


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe of mode offline or train.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe: key.path=value ...")
    ] = None,
    fresh: Annotated[
        bool, typer.Option(help="Move an earlier run of this name aside and start over.")
    ] = False,
) -> None:
    """Train on stored experiences, to the end; continues what was stopped, shows what is done."""
    with edge():
        from rft_data.cli.runs import move_aside, run_to_end, served_rank
        from rft_data.errors import RecipeError
        from rft_data.recipe import load_recipe
        from rft_data.recipe.modes import OfflineRecipe, TrainRecipe

        loaded = load_recipe(recipe, overrides or [])
        if not isinstance(loaded, OfflineRecipe | TrainRecipe):
            raise RecipeError(
                f"{recipe} has mode '{loaded.mode}'; this command takes the modes offline and train. Run it "
                f"with: rft {'data ' if loaded.mode == 'data' else ''}run {recipe}"
            )
        if served_rank(loaded):
            return
        if fresh:
            move_aside(loaded)
        again = " ".join(["train", str(recipe), *map(shlex.quote, overrides or [])])
        with edge(again=f"Continue with: rft resume {loaded.run_dir}"):
            typer.echo(run_to_end(loaded, again))
