"""The commands. Each imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.buffer import buffer_app
from rft_data.cli.data import data_app
from rft_data.cli.debug import debug_app
from rft_data.cli.doctor import doctor
from rft_data.cli.edge import Json, edge, say, show, show_written, speak
from rft_data.cli.hub import hub
from rft_data.cli.ops import ops_app
from rft_data.cli.recipe import recipe_app
from rft_data.cli.recipe_path import Overrides, RecipePath
from rft_data.cli.reward_server import reward_server
from rft_data.cli.run_status import run_status_app
from rft_data.cli.serve import serve
from rft_data.cli.status import RunDir
from rft_data.cli.view import report, view
from rft_data.core.version import __version__

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Move an earlier run of this name aside and start over.")
]

app = typer.Typer(
    name="rft",
    help="Reinforcement fine-tuning built around its data.",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
app.add_typer(recipe_app, name="recipe")
app.add_typer(buffer_app, name="buffer")
app.add_typer(data_app, name="data")
app.add_typer(ops_app, name="ops")
app.add_typer(debug_app, name="debug")
app.add_typer(run_status_app)
app.command()(doctor)
app.command("reward-server")(reward_server)
app.command()(serve)
app.command()(hub)
app.command()(view)
app.command()(report)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say on stderr only what is wrong.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also what libraries log, and tracebacks of errors.")
    ] = False,
) -> None:
    speak(quiet=quiet, verbose=verbose)
    if version:
        say(f"rft-data {__version__}")
        raise typer.Exit


@app.command()
def run(recipe: RecipePath, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False) -> None:
    """Run a recipe to its end; continues it if it was stopped, shows it if it is done."""
    _run(
        "run",
        ("online", "explore", "train", "offline", "eval"),
        recipe,
        overrides or [],
        fresh=fresh,
        as_json=as_json,
    )


@app.command()
def train(
    recipe: RecipePath, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """`rft run`, for recipes that explore nothing: train on stored experiences, to the end."""
    _run("train", ("train", "offline"), recipe, overrides or [], fresh=fresh, as_json=as_json)


@app.command()
def explore(
    recipe: RecipePath, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """`rft run`, for recipes of mode explore: play and store groups with a fixed policy."""
    _run("explore", ("explore",), recipe, overrides or [], fresh=fresh, as_json=as_json)


@app.command("eval")
def eval_(
    recipe: RecipePath, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """`rft run`, for recipes of mode eval: measure models on held-out tasks."""
    _run("eval", ("eval",), recipe, overrides or [], fresh=fresh, as_json=as_json)


@app.command()
def resume(
    run_dir: RunDir,
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="steps=NUMBER: go on to so many optimizer steps; explore: groups=NUMBER."),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="On an object store: also while another machine seems to be at work on it; if it is, it "
            "stores nothing more.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue a run from its own stored recipe; a finished one goes on with steps=NUMBER."""
    with edge(again=f"Continue with: rft resume {run_dir}"):
        from rft_data.cli.runs import run_to_end, served_rank
        from rft_data.recipe.load import load_run
        from rft_data.run.mirror import run_folder

        loaded = load_run(run_folder(run_dir), changes or [], of=run_dir)
        if not served_rank(loaded):
            say(run_to_end(loaded, "", as_json=as_json, take_over=take_over))


@app.command("help")
def help_(
    code: Annotated[str, typer.Argument(help="As an error names it: recipe, disk-full, ...")],
    as_json: Json = False,
) -> None:
    """What an error means, its usual causes, and what to do."""
    with edge():
        from rft_data.cli.troubles import trouble_facts, trouble_named, trouble_text

        found = trouble_named(code)
        show(trouble_facts(found), trouble_text(found), as_json=as_json)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder; its name names the run.")],
    as_json: Json = False,
) -> None:
    """Start a project: a recipe, data, a reward of your own with its test, and a README."""
    with edge():
        from rft_data.recipe.project import write_project

        show_written(write_project(folder), as_json=as_json)


def _run(
    command: str, modes: Sequence[str], path: Path, overrides: Sequence[str], *, fresh: bool, as_json: bool
) -> None:
    """`rft COMMAND PATH`, which takes recipes of these modes."""
    with edge():
        from rft_data.cli.runs import move_aside, run_to_end, served_rank
        from rft_data.recipe.load import load_run_recipe

        recipe = load_run_recipe(path, overrides, command=command, modes=modes)
        if served_rank(recipe):
            return
        if fresh:
            move_aside(recipe)
        again = " ".join([command, str(path), *map(shlex.quote, overrides)])
        with edge(again=f"Continue with: rft resume {recipe.run_dir}"):
            say(run_to_end(recipe, again, as_json=as_json))


def main() -> None:
    """Entry point of the `rft` script."""
    try:
        app()
    except Exception:  # noqa: BLE001 - of user code, or a mistake of ours; Python would print it unmasked
        say(traceback.format_exc(), err=True)
        sys.exit(1)


if __name__ == "__main__":  # as torchrun and accelerate start it: -m rft_data.cli.app
    main()
