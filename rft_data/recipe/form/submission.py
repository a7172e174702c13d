"""A recipe that a person edits in a form: read, changed, checked and explained, without a file of theirs.

No code is imported and no file is read that the text names: what it `extends` are shipped recipes, and paths
in it are not looked at. Values of environment variables are shown as references to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from rft_data.core.errors import RecipeError
from rft_data.recipe.explain import explain
from rft_data.recipe.form.editing import edited
from rft_data.recipe.form.fields import Part, parts
from rft_data.recipe.form.schema_node import Schema
from rft_data.recipe.json_schema import recipe_schema
from rft_data.recipe.layers import EXTENDS, read_layers
from rft_data.recipe.load import check_text
from rft_data.recipe.recipe import Recipe
from rft_data.recipe.shipped import shipped_recipes
from rft_data.recipe.yaml_text import parse_yaml

_FILE = Path("recipe.yaml")
_TOP = "recipe"
"""The name under which mistakes without a field are listed."""


class Request(TypedDict):
    """A form that was sent; JSON values."""

    text: str
    """The YAML as the person left it."""
    drawn: str
    """The YAML from which the fields were drawn."""
    fields: Mapping[str, str]
    """The fields' values, by their keys."""
    explain: bool


class Answer(TypedDict):
    """The form as it is shown again; JSON values."""

    text: str
    parts: list[dict[str, object]]
    mistakes: list[dict[str, object]]
    """`line`, `column`, `key` and `message` of each."""
    typed: dict[str, str]
    """Values of fields that could not be put into the text."""
    name: str
    """Name of a recipe without mistakes; else empty."""
    places: dict[str, str]
    """Its mode, folder and buffer: `mode`, `run_dir` and `buffer`."""
    explained: list[str]
    outlook: list[tuple[str, str]]
    """The outlook of a run of it: pairs of a name and words."""


Outlook = Callable[[Recipe], Sequence[tuple[str, str]]]


def worked_on(request: Request, outlook: Outlook = lambda _: ()) -> Answer:
    """The recipe after the changes, what is wrong with it, and its fields.

    Args: outlook: what a run of a recipe without mistakes would come to.
    """
    text, wrong, typed = _changed(request)
    mistakes: list[dict[str, object]] = [_mistake(key, said) for key, said in wrong.items()]
    answer: Answer = {
        "text": text,
        "parts": [],
        "mistakes": mistakes,
        "typed": typed,
        "name": "",
        "places": {},
        "explained": [],
        "outlook": [],
    }
    try:
        tree = parse_yaml(text, _TOP, keep_lines=True)
    except RecipeError as err:
        mistakes.append(_mistake(_TOP, str(err)))
        return answer
    answer["parts"] = [asdict(one) for one in _drawn(tree)]
    try:
        recipe, lines = _checked(text, tree, explained=request["explain"] and not mistakes)
    except RecipeError as err:
        mistakes += [dict(one) for one in err.mistakes] or [_mistake(_TOP, str(err))]
        return answer
    if not mistakes:
        answer["name"], answer["explained"] = recipe.name, lines
        where = str(getattr(recipe, "run_dir", ""))
        answer["outlook"] = list(outlook(recipe))
        answer["places"] = {"mode": recipe.mode, "run_dir": where, "buffer": recipe.buffer.uri}
    return answer


def _changed(request: Request) -> tuple[str, dict[str, str], dict[str, str]]:
    """The text with the changes of fields, what is wrong with some, and what was typed there."""
    text, given = request["text"], request["fields"]
    if not given:
        return text, {}, {}
    try:
        drawn = _drawn(parse_yaml(request["drawn"], _TOP, keep_lines=True))
        before = {one.key: one for part in drawn for one in part.fields}
        changes = {
            key: (before[key].kind, value)
            for key, value in given.items()
            if key in before and value.strip() != before[key].value.strip()
        }
        if not changes:
            return text, {}, {}
        text, wrong = edited(text, changes)
    except RecipeError as err:  # neither the fields nor the text may be lost
        return text, {_TOP: str(err)}, dict(given)
    return text, wrong, {key: given[key] for key in wrong}


def _drawn(tree: object) -> list[Part]:
    """The fields of a recipe; of what is no map, none."""
    if not isinstance(tree, dict):
        return []
    below: dict[str, object] = {}
    if EXTENDS in tree and not list(_foreign(tree)):
        given = tree[EXTENDS]
        names = [given] if isinstance(given, str) else list(given or [])
        known = {one.name: one.path for one in shipped_recipes()}
        if names:
            below = read_layers(known[names[0]], [f"{known[name]}" for name in names[1:]]).tree
    return parts(_schema(), tree, below)


@cache
def _schema() -> Schema:
    return Schema(recipe_schema())


def _checked(text: str, tree: object, *, explained: bool) -> tuple[Recipe, list[str]]:
    """The recipe, and every value of it with what set it. Raises: RecipeError with all mistakes."""
    if wrong := list(_foreign(tree)):
        error = RecipeError("\n".join(str(one["message"]) for one in wrong))
        error.mistakes = wrong
        raise error
    here = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # an empty one: relative paths in the text lead nowhere
        try:
            _FILE.write_text(text)
            recipe = check_text(_FILE)
            if explained and (own := list(_own_presets(recipe))):
                raise RecipeError(f"{own[0]} is code of your own, which the page does not import.")
            return recipe, explain(_FILE) if explained else []
        finally:
            os.chdir(here)


def _foreign(tree: object) -> Iterator[Mapping[str, object]]:
    """The files that a text extends and that are no shipped recipes."""
    given = tree.get(EXTENDS) if isinstance(tree, dict) else None
    names: Sequence[object] = given if isinstance(given, list) else [] if given is None else [given]
    shipped = {one.name for one in shipped_recipes()}
    for name in names:
        if not isinstance(name, str) or name not in shipped:
            yield _mistake(
                EXTENDS, f"the page reads no files: '{name}' is not the name of a shipped recipe; give one"
            )


def _own_presets(recipe: Recipe) -> Iterator[str]:
    """Algorithms that are named by import path: to explain them would run their code."""
    for stage in getattr(recipe, "stages", []):
        if ":" in stage.algorithm:
            yield stage.algorithm


def _mistake(key: str, message: str) -> dict[str, object]:
    return {"line": None, "column": None, "key": key, "message": message}
