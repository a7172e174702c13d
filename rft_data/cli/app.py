"""The commands. Each imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rft_data.cli.edge import edge, show

RecipePath = Annotated[Path, typer.Argument(help="A recipe file, for example recipes/quickstart.yaml.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key.path=value ...")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

app = typer.Typer(
    name="rft",
    help="Reinforcement fine-tuning built around its data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
recipe_app = typer.Typer(help="Check recipes.", no_args_is_help=True)
buffer_app = typer.Typer(help="Look into a buffer.", no_args_is_help=True)
data_app = typer.Typer(help="Data recipes: load, clean, score.", no_args_is_help=True)
app.add_typer(recipe_app, name="recipe")
app.add_typer(buffer_app, name="buffer")
app.add_typer(data_app, name="data")


@app.command()
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option(help="Move an earlier run of this name aside and start over.")
    ] = False,
) -> None:
    """Run an online recipe to its end; continues it if it was stopped, shows it if it is done."""
    with edge():
        from rft_data.cli.runs import move_aside, run_online
        from rft_data.errors import RecipeError
        from rft_data.recipe import load_recipe
        from rft_data.recipe.modes import OnlineRecipe

        loaded = load_recipe(recipe, overrides or [])
        if not isinstance(loaded, OnlineRecipe):
            raise RecipeError(f"{recipe} has mode '{loaded.mode}'; run it with: rft data run {recipe}")
        if fresh:
            move_aside(loaded)
        again = " ".join(["run", str(recipe), *map(shlex.quote, overrides or [])])
        with edge(again=f"Continue with: rft resume {loaded.run_dir}"):
            typer.echo(run_online(loaded, again))


@app.command()
def resume(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, for example runs/quickstart.")],
) -> None:
    """Continue a run from its own stored recipe."""
    with edge(again=f"Continue with: rft resume {run_dir}"):
        from rft_data.cli.runs import run_online
        from rft_data.recipe.load import load_run

        typer.echo(run_online(load_run(run_dir), f"resume {run_dir}"))


@recipe_app.command()
def validate(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Check a recipe without running it; every problem is listed with file and line."""
    with edge():
        from rft_data.recipe import load_recipe

        loaded = load_recipe(recipe, overrides or [])
        typer.echo(f"{recipe}: valid ({loaded.mode} recipe '{loaded.name}')")


@buffer_app.command()
def info(uri: Annotated[Path, typer.Argument(help="The buffer's folder.")], as_json: Json = False) -> None:
    """Rows per table, and experiences by source."""
    with edge():
        from rft_data.buffer import Buffer

        buffer = Buffer(uri, read_only=True)
        sources: dict[str, int] = {}
        for source in buffer.read("experiences", ["source"]).column("source").to_pylist():
            sources[source] = sources.get(source, 0) + 1
        value = {"uri": str(uri), "rows": buffer.counts(), "experiences_by_source": sources}
        lines = [f"{name:<14}{count:>9}" for name, count in buffer.counts().items()]
        lines += [f"  {source:<12}{count:>9}" for source, count in sorted(sources.items())]
        show(value, "\n".join(lines), as_json=as_json)


@buffer_app.command()
def head(
    uri: Annotated[Path, typer.Argument(help="The buffer's folder.")],
    table: Annotated[str, typer.Option(help="Which table.")] = "experiences",
    n: Annotated[int, typer.Option("-n", min=1, help="How many of the newest rows.")] = 5,
    as_json: Json = False,
) -> None:
    """The newest rows of a table."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.errors import UnknownComponentError
        from rft_data.lookup import suggest
        from rft_data.schema import TABLES

        if table not in TABLES:
            raise UnknownComponentError(
                f"a buffer has no table '{table}';{suggest(table, TABLES)} "
                f"There are: {', '.join(sorted(TABLES))}."
            )
        rows = Buffer(uri, read_only=True).tail(table, n).to_pylist()
        show(
            rows, "\n\n".join(_readable(row) for row in rows) or f"table '{table}' is empty", as_json=as_json
        )


@data_app.command("run")
def data_run(
    recipe: RecipePath,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Run a data recipe: load tasks, clean them, store and score rollouts."""
    with edge():
        from rft_data.curation import curate, report_text
        from rft_data.errors import RecipeError
        from rft_data.recipe import load_recipe
        from rft_data.recipe.modes import DataRecipe

        loaded = load_recipe(recipe, overrides or [])
        if not isinstance(loaded, DataRecipe):
            raise RecipeError(f"{recipe} has mode '{loaded.mode}'; run it with: rft run {recipe}")
        report = curate(loaded)
        show(report, report_text(report), as_json=as_json)


def _readable(row: dict[str, Any]) -> str:
    """One row as `column: value` lines; long values are cut."""
    width = max(len(name) for name in row)
    lines = []
    for name, value in row.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        text = text.replace("\n", "\\n")
        lines.append(f"{name:<{width}}  {text if len(text) <= 160 else text[:157] + '...'}")
    return "\n".join(lines)


def main() -> None:
    """Entry point of the `rft` script."""
    app()
