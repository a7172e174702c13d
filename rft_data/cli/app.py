"""The commands. Each imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.buffer import buffer_app
from rft_data.cli.data import data_app
from rft_data.cli.edge import edge
from rft_data.cli.run_status import run_status_app
from rft_data.cli.train import train

RecipePath = Annotated[Path, typer.Argument(help="A recipe file, for example recipes/quickstart.yaml.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key.path=value ...")]

app = typer.Typer(
    name="rft",
    help="Reinforcement fine-tuning built around its data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
recipe_app = typer.Typer(help="Check recipes.", no_args_is_help=True)
app.add_typer(recipe_app, name="recipe")
app.add_typer(buffer_app, name="buffer")
app.add_typer(data_app, name="data")
app.add_typer(run_status_app)


@app.command()
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option(help="Move an earlier run of this name aside and start over.")
    ] = False,
) -> None:
    """Run a recipe to its end; continues it if it was stopped, shows it if it is done."""
    with edge():
        from rft_data.cli.runs import move_aside, run_to_end, served_rank
        from rft_data.errors import RecipeError
        from rft_data.recipe import load_recipe
        from rft_data.recipe.modes import RunRecipe

        loaded = load_recipe(recipe, overrides or [])
        if not isinstance(loaded, RunRecipe):
            raise RecipeError(f"{recipe} has mode '{loaded.mode}'; run it with: rft data run {recipe}")
        if served_rank(loaded):
            return
        if fresh:
            move_aside(loaded)
        again = " ".join(["run", str(recipe), *map(shlex.quote, overrides or [])])
        with edge(again=f"Continue with: rft resume {loaded.run_dir}"):
            typer.echo(run_to_end(loaded, again))


@app.command()
def resume(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, for example runs/quickstart.")],
) -> None:
    """Continue a run from its own stored recipe."""
    with edge(again=f"Continue with: rft resume {run_dir}"):
        from rft_data.cli.runs import run_to_end, served_rank
        from rft_data.recipe.load import load_run

        loaded = load_run(run_dir)
        if not served_rank(loaded):
            typer.echo(run_to_end(loaded, f"resume {run_dir}"))


app.command()(train)


@recipe_app.command()
def validate(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Check a recipe without running it; every problem is listed with file and line."""
    with edge():
        from rft_data.recipe import load_recipe

        loaded = load_recipe(recipe, overrides or [])
        typer.echo(f"{recipe}: valid ({loaded.mode} recipe '{loaded.name}')")


@recipe_app.command()
def explain(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Every value a run would have, and whether the recipe, its algorithm's preset or a default set it."""
    with edge():
        from rft_data.recipe.explain import explain as explained

        typer.echo("\n".join(explained(recipe, overrides or [])))


def main() -> None:
    """Entry point of the `rft` script."""
    app()


if __name__ == "__main__":  # as torchrun and accelerate start it: -m rft_data.cli.app
    main()
