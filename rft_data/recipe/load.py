"""Reads a recipe from a YAML file; reports every problem at once, with its line and column.

It imports a preset of the user's (`algorithm: module:NAME`) and nothing else; `check_recipe` does not import
that either. Only `validate_recipe` looks at the files that the recipe names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from rft_data.core.errors import MissingFileError, RecipeError, ResumeError
from rft_data.core.lookup import own_code_from
from rft_data.core.masking import hide
from rft_data.recipe.located import described, dotted, line_number, place
from rft_data.recipe.modes import MODES, DataRecipe, OperatorRecipe
from rft_data.recipe.operator_lists import name_operators
from rft_data.recipe.preflight import Problem, broken_rules, problems_here
from rft_data.recipe.recipe import Recipe, RunRecipe
from rft_data.recipe.section import CHECK_ONLY, Loc
from rft_data.recipe.stored import as_it_was_read
from rft_data.recipe.yaml_text import MAX_DEPTH, parse_yaml

_FILE_NAME = re.compile(r"([^:\s]+\.py)(:[A-Za-z_]\w*)")
"""`folder/file.py:Name`."""
_PATH_KEYS = (("path",), ("teacher",))
"""Keys of files and folders that a run reads."""

Check: TypeAlias = Callable[[Mapping[str, object]], Iterator[Problem]]
"""Finds mistakes in a recipe's tree, whose references are filled in."""

OWN_CODE_FILE = "own_code"
"""File of a run's folder: the folders whose modules its recipe may name."""
_MAX_BYTES = 1 << 20
_ENV = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read, override and check one recipe; modules in its folder can be named from then on.

    Args: overrides: `a.b.0.c=value` strings, the value read as YAML.
    Raises: MissingFileError, or RecipeError listing every problem as `file:line:column key: what`.
    """
    own_code_from(path.parent)
    return _checked(read_tree(path, overrides), path, checks=[broken_rules])


def check_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """What `load_recipe` does, importing nothing; a recipe with a preset of the user's lacks what that sets.

    Raises: what `load_recipe` raises.
    """
    return _checked(read_tree(path, overrides), path, CHECK_ONLY, [broken_rules])


def validate_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """`check_recipe` for this machine: files and code that the recipe names must be there.

    Arguments and options are compared with the files of the installed packages, which are not imported.
    Raises: what `load_recipe` raises.
    """
    own_code_from(path.parent)
    return _checked(read_tree(path, overrides), path, CHECK_ONLY, [broken_rules, problems_here])


def load_run_recipe(
    path: Path, overrides: Sequence[str] = (), *, command: str = "run", modes: Sequence[str]
) -> RunRecipe:
    """`validate_recipe` and `load_recipe` for `rft COMMAND`, which runs recipes of these modes only."""
    validate_recipe(path, overrides)
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
    name_operators(tree)
    return tree


def load_run(run_dir: Path) -> RunRecipe:
    """The recipe a run began with, from the run's folder.

    Raises: MissingFileError if the folder holds no run; ResumeError if it is damaged, or its recipe,
        read from here, names another folder.
    """
    path = run_dir / "recipe.json"
    own_code = run_dir / OWN_CODE_FILE
    if own_code.is_file():
        for folder in own_code.read_text().split(os.pathsep):
            own_code_from(Path(folder))
    if not path.is_file():
        raise MissingFileError(f"{run_dir} holds no run (no recipe.json in it); name a folder under 'runs'.")
    try:
        recipe = _checked(as_it_was_read(json.loads(path.read_text())), path)
    except ValueError as err:
        raise ResumeError(f"{path} cannot be read as this run's recipe: {err}") from err
    if not isinstance(recipe, RunRecipe) or Path(recipe.run_dir).resolve() != run_dir.resolve():
        raise ResumeError(
            f"{run_dir} was run as '{getattr(recipe, 'run_dir', recipe.name)}'; resume it under that name, "
            "from the folder it was started in."
        )
    return recipe


def _checked(
    tree: object, path: Path, context: Mapping[str, bool] | None = None, checks: Sequence[Check] = ()
) -> Recipe:
    """The recipe in a parsed tree; every problem in one RecipeError."""
    filler = _References(path, tree)
    data = filler.fill(tree, ())
    problems = filler.problems
    if not isinstance(data, dict):
        raise _error(path, [f"found {type(data).__name__}, wanted a map of sections"])
    mode = data.get("mode")
    if not isinstance(mode, str) or mode not in MODES:
        problems.append(
            f"{place(path, tree, ('mode',))} mode: found {mode!r}; one of {', '.join(MODES)} is needed"
        )
        raise _error(path, problems)
    further = [found for check in checks for found in check(data)]
    problems += [f"{place(path, tree, one.loc)} {dotted(one.loc)}: {one.message}" for one in further]
    try:
        recipe = MODES[mode].model_validate(data, context=context)
    except ValidationError as err:
        problems += [described(path, tree, MODES[mode], problem) for problem in err.errors()]
        raise _error(path, problems) from err
    if problems:
        raise _error(path, problems)
    recipe.keep_references(filler.found)
    return recipe


def _parse(path: Path) -> dict[str, object]:
    if not path.is_file():
        raise MissingFileError(f"there is no recipe at {path}; the shipped ones: rft recipe list.")
    if path.stat().st_size > _MAX_BYTES:
        raise RecipeError(f"{path} has {path.stat().st_size} bytes; a recipe has at most {_MAX_BYTES}.")
    try:
        text = path.read_text()
    except UnicodeDecodeError as err:
        raise RecipeError(f"{path} is not valid YAML: {err}") from err
    tree = parse_yaml(text, str(path), keep_lines=True)
    if not isinstance(tree, dict):
        found = "is empty" if tree is None else f"holds {type(tree).__name__}, not a map of sections"
        raise RecipeError(
            f"{path} {found}; a recipe begins with the keys recipe, name and mode: start from one of the "
            "folder 'recipes'."
        )
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
            return {
                self._beside(str(key), ()): self.fill(value, (*loc, str(key))) for key, value in node.items()
            }
        if isinstance(node, list):
            return [self.fill(value, (*loc, i)) for i, value in enumerate(node)]
        if not isinstance(node, str):
            return _plain(node)
        if not _ENV.search(node):
            return self._beside(str(node), loc)
        self.found[loc] = str(node)
        filled = _ENV.sub(lambda match: self._value(match, loc), node)
        return self._parsed(filled, loc) if _ENV.fullmatch(node) else filled

    def _beside(self, value: str, loc: Loc) -> str:
        """A file that is not there seen from the working directory, but beside the recipe, by its path."""
        file, name = _FILE_NAME.fullmatch(value), ""
        if file is not None:
            value, name = file.groups()
        elif loc[-1:] not in _PATH_KEYS:
            return value
        there = self._path.parent / value
        if value and not Path(value).exists() and there.exists():
            value = os.path.relpath(there)
        return value + name

    def _parsed(self, value: str, loc: Loc) -> object:
        """A variable's value, read as YAML; errors do not say what is wrong with it: it may be a secret."""
        try:
            return parse_yaml(value, "")
        except RecipeError:
            self.problems.append(
                f"{place(self._path, self._tree, loc)} {dotted(loc)}: the environment variable's value is "
                "not valid YAML; to have it taken as text, put quotes around it, inside the variable"
            )
            return None

    def _value(self, match: re.Match[str], loc: Loc) -> str:
        name, default = match.groups()
        if name not in os.environ and default is None:
            self.problems.append(
                f"{place(self._path, self._tree, loc)} {dotted(loc)}: environment variable {name} is not "
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
    """The problems by their lines in the file, each once."""
    lines = sorted(dict.fromkeys(problems), key=line_number)
    return RecipeError("\n".join([f"{path} is not a valid recipe:", *(f"  {line}" for line in lines)]))
