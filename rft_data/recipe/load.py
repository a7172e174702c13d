"""Reads a recipe from a YAML file; reports every problem at once, with its line and column.

It opens no file that the recipe names. It imports a preset of the user's (`algorithm: module:NAME`) and
nothing else; `check_recipe` does not import that either.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rft_data.core.errors import MissingFileError, RecipeError, ResumeError
from rft_data.core.lookup import suggest
from rft_data.core.masking import hide
from rft_data.recipe.modes import MODES, DataRecipe, OperatorRecipe
from rft_data.recipe.names import TRUNCATING
from rft_data.recipe.recipe import Recipe, RunRecipe
from rft_data.recipe.section import CHECK_ONLY, Loc
from rft_data.recipe.yaml_text import MAX_DEPTH, parse_yaml

_MAX_BYTES = 1 << 20
_ENV = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read, override and check one recipe.

    Args: overrides: `a.b.0.c=value` strings, the value read as YAML.
    Raises: MissingFileError, or RecipeError listing every problem as `file:line:column key: what`.
    """
    return _checked(read_tree(path, overrides), path)


def check_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """What `load_recipe` does, importing nothing; a recipe with a preset of the user's lacks what that sets.

    Raises: what `load_recipe` raises.
    """
    return _checked(read_tree(path, overrides), path, CHECK_ONLY)


def load_run_recipe(
    path: Path, overrides: Sequence[str] = (), *, command: str = "run", modes: Sequence[str]
) -> RunRecipe:
    """`load_recipe` for `rft COMMAND`, which runs recipes of these modes only."""
    recipe = load_recipe(path, overrides)
    if not isinstance(recipe, RunRecipe) or recipe.mode not in modes:
        instead = "data run" if recipe.mode == "data" else "run"
        raise RecipeError(
            f"{path} has mode '{recipe.mode}', and rft {command} takes the modes {', '.join(modes)}; "
            f"run it with: rft {instead} {path}"
        )
    return recipe


def load_data_recipe(path: Path, overrides: Sequence[str] = ()) -> DataRecipe:
    """`load_recipe` for `rft data run`, which runs recipes of mode `data` only."""
    recipe = load_recipe(path, overrides)
    if not isinstance(recipe, DataRecipe):
        raise RecipeError(f"{path} has mode '{recipe.mode}'; run it with: rft run {path}")
    return recipe


def load_operator_recipe(path: Path, overrides: Sequence[str] = ()) -> OperatorRecipe:
    """`load_recipe` for commands that try a recipe's `experience_ops`."""
    recipe = load_recipe(path, overrides)
    if not isinstance(recipe, OperatorRecipe):
        raise RecipeError(
            f"{path} has mode '{recipe.mode}', which has no 'experience_ops' to try; name a recipe of mode "
            "online, explore or train."
        )
    return recipe


def read_tree(path: Path, overrides: Sequence[str] = ()) -> dict[str, object]:
    """A recipe's tree as it is written, with the overrides: nothing checked, no reference filled in.

    Raises: MissingFileError; RecipeError when it is no YAML map, or an override cannot be set.
    """
    tree = _parse(path)
    for override in overrides:
        _override(tree, override)
    return tree


def load_run(run_dir: Path) -> RunRecipe:
    """The recipe a run began with, from the run's folder.

    Raises: MissingFileError if the folder holds no run; ResumeError if it is damaged, or its recipe,
        read from here, names another folder.
    """
    path = run_dir / "recipe.json"
    if not path.is_file():
        raise MissingFileError(f"{run_dir} holds no run (no recipe.json in it); name a folder under 'runs'.")
    try:
        recipe = _checked(json.loads(path.read_text()), path)
    except ValueError as err:
        raise ResumeError(f"{path} cannot be read as this run's recipe: {err}") from err
    if not isinstance(recipe, RunRecipe) or Path(recipe.run_dir).resolve() != run_dir.resolve():
        raise ResumeError(
            f"{run_dir} was run as '{getattr(recipe, 'run_dir', recipe.name)}'; resume it under that name, "
            "from the folder it was started in."
        )
    return recipe


def _checked(tree: object, path: Path, context: Mapping[str, bool] | None = None) -> Recipe:
    """The recipe in a parsed tree; every problem in one RecipeError."""
    filler = _References(path, tree)
    data = filler.fill(tree, ())
    problems, mode = filler.problems, data.get("mode") if isinstance(data, dict) else None
    if not isinstance(mode, str) or mode not in MODES:
        problems.append(
            f"{_place(path, tree, ('mode',))} mode: found {mode!r}; one of {', '.join(MODES)} is needed"
        )
        raise _error(path, problems)
    try:
        recipe = MODES[mode].model_validate(data, context=context)
    except ValidationError as err:
        problems += [_describe(path, tree, MODES[mode], problem) for problem in err.errors()]
        raise _error(path, problems) from err
    if problems:
        raise _error(path, problems)
    recipe.keep_references(filler.found)
    return recipe


def _parse(path: Path) -> dict[str, object]:
    if not path.is_file():
        raise MissingFileError(f"there is no recipe at {path}; shipped recipes are in the folder 'recipes'.")
    if path.stat().st_size > _MAX_BYTES:
        raise RecipeError(f"{path} has {path.stat().st_size} bytes; a recipe has at most {_MAX_BYTES}.")
    try:
        text = path.read_text()
    except UnicodeDecodeError as err:
        raise RecipeError(f"{path} is not valid YAML: {err}") from err
    tree = parse_yaml(text, str(path), keep_lines=True)
    if not isinstance(tree, dict):
        raise RecipeError(f"{path} holds {type(tree).__name__}, not a map of sections.")
    return tree


def _override(tree: dict[str, object], text: str) -> None:
    """Set `a.b.0.c=value` in the tree; a map on the way is created, a list entry must exist."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} is not of the form key=value, for example seed=1.")
    parsed = parse_yaml(value, f"the value of override '{key}'")
    node: Any = tree
    *parents, last = key.split(".")
    if len(parents) > MAX_DEPTH:
        raise RecipeError(f"override {text!r} names a place deeper than {MAX_DEPTH} keys.")
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            node[int(last)] = parsed
        else:
            node[last] = parsed
    except (AttributeError, IndexError, TypeError, ValueError) as err:
        raise RecipeError(f"override {text!r}: there is no '{key}' in the recipe to set.") from err


class _References:
    """Fills in `${env:NAME}` and `${env:NAME:-default}`, and remembers their places."""

    def __init__(self, path: Path, tree: object) -> None:
        self._path = path
        self._tree = tree
        self.problems: list[str] = []
        self.found: dict[Loc, str] = {}

    def fill(self, node: object, loc: Loc) -> object:
        """Plain Python values of a tree; a value that is one whole reference is read as YAML."""
        if isinstance(node, dict):
            return {str(key): self.fill(value, (*loc, str(key))) for key, value in node.items()}
        if isinstance(node, list):
            return [self.fill(value, (*loc, i)) for i, value in enumerate(node)]
        if not isinstance(node, str):
            return _plain(node)
        if not _ENV.search(node):
            return str(node)
        self.found[loc] = str(node)
        filled = _ENV.sub(lambda match: self._value(match, loc), node)
        return self._parsed(filled, loc) if _ENV.fullmatch(node) else filled

    def _parsed(self, value: str, loc: Loc) -> object:
        """A variable's value, read as YAML; errors do not say what is wrong with it: it may be a secret."""
        try:
            return parse_yaml(value, "")
        except RecipeError:
            self.problems.append(
                f"{_place(self._path, self._tree, loc)} {_dotted(loc)}: the environment variable's value is "
                "not valid YAML; to have it taken as text, put quotes around it, inside the variable"
            )
            return None

    def _value(self, match: re.Match[str], loc: Loc) -> str:
        name, default = match.groups()
        if name not in os.environ and default is None:
            self.problems.append(
                f"{_place(self._path, self._tree, loc)} {_dotted(loc)}: environment variable {name} is not "
                f"set; set it, or write ${{env:{name}:-default}}"
            )
        if name in os.environ:
            hide({f"${{env:{name}}}": os.environ[name]})
        return os.environ.get(name, default or "")


def _plain(value: object) -> object:
    """A scalar without ruamel's own type, which would be pickled into a trainer's checkpoint."""
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def _error(path: Path, problems: Sequence[str]) -> RecipeError:
    return RecipeError("\n".join([f"{path} is not a valid recipe:", *(f"  {p}" for p in problems)]))


def _describe(path: Path, tree: object, model: type[BaseModel], problem: ErrorDetails) -> str:
    loc = _in_tree(tree, problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        close = suggest(str(loc[-1]), _known_fields(model, loc[:-1]))
        message = f"unknown key;{close}" if close else "unknown key"
        if loc[-1] in TRUNCATING:
            message = (
                f"'{loc[-1]}' is refused: it samples from a cut-off distribution, whose logprobs the trainer "
                "does not compute, so that importance ratios would be wrong; use 'temperature'"
            )
    return f"{_place(path, tree, loc)} {_dotted(loc) or 'recipe'}: {message}"


def _in_tree(tree: object, loc: Loc) -> Loc:
    """Pydantic's location without the union tags it inserts; a missing key stays as the last part."""
    kept: list[str | int] = []
    node: Any = tree
    for i, part in enumerate(loc):
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)
        if inside:
            node = node[part]
            kept.append(part)
        elif i == len(loc) - 1 and isinstance(node, dict):
            kept.append(part)
    return tuple(kept)


def _known_fields(model: type[BaseModel], loc: Loc) -> list[str]:
    """Field names of the section at `loc` (of all its alternatives, where it is a union)."""
    from typing import get_args

    found: list[type[BaseModel]] = [model]
    for part in loc:
        if isinstance(part, int):
            continue
        kinds: list[object] = [m.model_fields[part].annotation for m in found if part in m.model_fields]
        found = []
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found.append(kind)
            kinds += get_args(kind)
    return [name for m in found for name in m.model_fields]


def _place(path: Path, tree: object, loc: Loc) -> str:
    """`file:line:column` of the deepest part of `loc` that the file holds."""
    node: Any = tree
    line = column = 0
    for part in loc:
        try:
            is_map = isinstance(node, dict)
            line, column = node.lc.key(part) if is_map else node.lc.item(part)
            node = node[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return f"{path}:{line + 1}:{column + 1}"


def _dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)
