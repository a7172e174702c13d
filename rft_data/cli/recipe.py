"""`rft recipe`: find, read, compare, write and check recipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.completion import recipe_names
from rft_data.cli.edge import Json, edge, say, show, show_written
from rft_data.cli.recipe_path import Overrides, RecipePath, shipped_or_file
from rft_data.core.errors import RecipeError

if TYPE_CHECKING:
    from rft_data.recipe.explain import Value
    from rft_data.recipe.recipe import Recipe
    from rft_data.recipe.shipped import ShippedRecipe
    from rft_data.run.debug.probing import Probe

Name = Annotated[
    str, typer.Argument(help="Name of a shipped recipe, for example quickstart.", autocompletion=recipe_names)
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Load the libraries, the tasks and the tokenizer too; no engine.")
]
recipe_app = typer.Typer(help="Find, read, compare, write and check recipes.", no_args_is_help=True)


@recipe_app.command("list")
def list_(as_json: Json = False) -> None:
    """The shipped recipes: what each does, for whom, what it needs and how long it takes."""
    with edge():
        from rft_data.recipe.shipped import shipped_recipes

        found = shipped_recipes()
        value = [
            {"name": one.name, "about": one.about, **{k.lower(): v for k, v in one.facts.items()}}
            for one in found
        ]
        show(value, "\n".join(map(_listed, found)), as_json=as_json)


@recipe_app.command("show")
def show_(name: Name, as_json: Json = False) -> None:
    """Print a shipped recipe as it is written."""
    with edge():
        from rft_data.recipe.shipped import shipped_recipe

        found = shipped_recipe(name)
        text = found.path.read_text()
        value = {"name": found.name, "path": found.path, "text": text}
        show(value, text.rstrip("\n"), as_json=as_json)


@recipe_app.command()
def copy(
    name: Name,
    path: Annotated[Path, typer.Argument(help="A file (.yaml) or a folder.")] = Path(),
    as_json: Json = False,
) -> None:
    """Copy a shipped recipe with the files it names, to change and run from there."""
    with edge():
        from rft_data.recipe.copying import copy_recipe

        show_written(copy_recipe(name, path), as_json=as_json)


@recipe_app.command()
def new(
    path: Annotated[Path, typer.Argument(help="The file to write; its name names the run.")],
    goal: Annotated[
        str | None, typer.Option(help="grpo, sft, dpo, eval or curate; asked on a terminal.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A file, a dataset's folder, hf:// or modelscope:// org/name:split, reasoning_gym:NAME, or "
            "./file.py:function."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A Hugging Face folder or hub id; or tiny: built here, for trying.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Column of the prompt, where it cannot be told.")] = None,
    answer: Annotated[
        str | None,
        typer.Option("--answer", "--completion", help="Column of the answer, where it cannot be told."),
    ] = None,
    chosen: Annotated[str | None, typer.Option(help="dpo: column of the better answer.")] = None,
    rejected: Annotated[str | None, typer.Option(help="dpo: column of the worse answer.")] = None,
    as_json: Json = False,
) -> None:
    """Write a commented recipe for a model, data and a goal."""
    with edge():
        from rft_data.recipe.load import check_recipe
        from rft_data.recipe.new import Goal, Wanted, write_recipe

        wanted = Goal(_chosen(goal, "--goal", list(Goal)))
        given = _chosen(data, "--data", ())
        by = "" if wanted is Goal.CURATE else _chosen(model, "--model", ())
        write_recipe(Wanted(wanted, given, by, prompt, answer, chosen, rejected), path)
        show({"written": [path]}, f"wrote {path}; its header says what to do next", as_json=as_json)
        check_recipe(path)


@recipe_app.command()
def diff(
    left: RecipePath,
    right: Annotated[Path, typer.Argument(help="Another recipe, by file or name.", callback=shipped_or_file)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to RIGHT: key.path=value, ~key.path (deletes it), OVERLAY.yaml ..."),
    ] = None,
    as_json: Json = False,
) -> None:
    """In which values two recipes differ, after presets and defaults.

    Entries of lists are paired by name: stages by their algorithm, operators and rewards by theirs.
    """
    with edge():
        from rft_data.recipe.difference import differences
        from rft_data.recipe.explain import values
        from rft_data.recipe.load import load_recipe

        changes = overrides or []
        origins = {"left": values(left), "right": values(right, changes)}
        found = [
            {
                **asdict(one),
                "origins": {side: _origin(origins[side], place) for side, place in one.places.items()},
            }
            for one in differences(load_recipe(left), load_recipe(right, changes))
        ]
        lines = [
            f"{one['key']}: {' -> '.join(_value(one['values'], side) for side in ('left', 'right'))}"
            f"  # {', '.join(one['origins'].values())}"
            for one in found
        ]
        show(found, "\n".join(lines) or "no difference", as_json=as_json)


@recipe_app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    with edge():
        from rft_data.recipe.json_schema import schema_text

        say(schema_text(), end="")


@recipe_app.command()
def validate(
    recipe: RecipePath, overrides: Overrides = None, deep: Deep = False, as_json: Json = False
) -> None:
    """Check a recipe without running it or importing what it names; every problem with file and line."""
    with edge():
        try:
            loaded = _validated(recipe, overrides or [], deep=deep)
        except RecipeError as err:
            if as_json:
                show({"valid": False, "mistakes": err.mistakes, "error": str(err)}, "", as_json=True)
            raise
        value = {"valid": True, "mistakes": [], "mode": loaded.mode, "name": loaded.name}
        show(value, f"{recipe}: valid ({loaded.mode} recipe '{loaded.name}')", as_json=as_json)


def _validated(recipe: Path, overrides: Sequence[str], *, deep: bool) -> Recipe:
    from rft_data.recipe.load import load_recipe, validate_recipe

    loaded = validate_recipe(recipe, overrides)
    if deep:
        from rft_data.recipe.invalid import invalid
        from rft_data.recipe.layers import read_layers
        from rft_data.run.deep_check import as_written, deep_problems  # loads the libraries

        written, resolved = read_layers(recipe, overrides), load_recipe(recipe, overrides)
        if found := [as_written(one, resolved, written.tree) for one in deep_problems(resolved)]:
            raise invalid(written.origins, found, "cannot run here")
    return loaded


@recipe_app.command()
def explain(
    recipe: RecipePath,
    overrides: Overrides = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Memory of each GPU where the run will be, like 80GB.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Play one task too, as rft recipe probe does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a run would come to (batches, memory, disk, hosts), and every value with what set it."""
    with edge():
        from rft_data.cli.debug_text import probe_text
        from rft_data.recipe.explain import explain as explained
        from rft_data.recipe.explain import values
        from rft_data.recipe.load import load_recipe
        from rft_data.run.outlook.lines import outlook_lines

        loaded = load_recipe(recipe, overrides or [])
        outlook = outlook_lines(loaded, gpu_memory)
        tried = _probed(loaded, None) if probe else None
        if not as_json:
            said = [] if tried is None else ["", probe_text(tried)]
            say("\n".join([*outlook, *said, "", *explained(recipe, overrides or [])]))
            return
        parts = [line.split(maxsplit=1) for line in outlook]
        found = {
            "outlook": [{"what": what, "words": words} for what, words in parts],
            "values": [asdict(one) for one in values(recipe, overrides or [])],
            **({} if tried is None else {"probe": asdict(tried)}),
        }
        show(found, "", as_json=True)


@recipe_app.command()
def probe(
    recipe: RecipePath,
    overrides: Overrides = None,
    which: Annotated[
        str | None, typer.Option("--task", help="A task's id, or its place from 0; else the first task.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One task through explorer, operators and loss, with everything real; updates and keeps nothing."""
    with edge():
        from rft_data.cli.debug_text import probe_text
        from rft_data.recipe.load import load_recipe

        found = _probed(load_recipe(recipe, overrides or []), which)
        show(asdict(found), probe_text(found), as_json=as_json)


def _probed(recipe: Recipe, which: str | None) -> Probe:
    from rft_data.run.debug.chosen import chosen_task
    from rft_data.run.debug.probing import can_be_probed, probed

    loaded = can_be_probed(recipe)
    return probed(loaded, chosen_task(loaded, which))


def _chosen(given: str | None, flag: str, choices: Sequence[str]) -> str:
    """A flag's value, asked for on a terminal where it is not given. Raises: RecipeError."""
    from rft_data.core.errors import RecipeError

    options = f" ({', '.join(choices)})" if choices else ""
    if given is None and sys.stdin.isatty():
        given = typer.prompt(flag.removeprefix("--") + options, err=True)
    if not given or (choices and given not in choices):
        found = "is not given" if not given else f"is '{given}'"
        raise RecipeError(f"{flag} {found}; give {'one of ' + ', '.join(choices) if choices else 'it'}.")
    return given


def _listed(one: ShippedRecipe) -> str:
    return "\n".join([f"{one.name}\n  {one.about}", *(f"  {key}: {said}" for key, said in one.facts.items())])


def _origin(values: Sequence[Value], place: str) -> str:
    """Origin of a value; of a list, that of its first one."""
    return next(one.origin for one in values if one.key == place or one.key.startswith(f"{place}."))


def _value(values: dict[str, object], side: str) -> str:
    return json.dumps(values[side], ensure_ascii=False) if side in values else "(not there)"
