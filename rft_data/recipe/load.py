"""Reads a recipe from a YAML file; reports every problem at once, with its line and column.

`load_recipe` imports a preset of the user's (`algorithm: module:NAME`) and nothing else; `check_recipe` and
`validate_recipe` do not import that either. Only `validate_recipe` looks at the files that the recipe names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from rft_data.core.errors import MissingFileError, RecipeError, ResumeError
from rft_data.core.lookup import own_code_from, suggest
from rft_data.core.scratch import on_store, working_folder
from rft_data.core.words import Mode
from rft_data.recipe.extending import Length, run_length, with_length
from rft_data.recipe.format_version import FORMAT, KEY, version_problem
from rft_data.recipe.invalid import invalid
from rft_data.recipe.layers import Written, read_layers
from rft_data.recipe.located import located
from rft_data.recipe.modes import MODES, DataRecipe, OperatorRecipe
from rft_data.recipe.origins import Origins
from rft_data.recipe.paths import folders_beside
from rft_data.recipe.preflight import Problem, argument_problems, broken_rules, problems_here, trl_problems
from rft_data.recipe.recipe import Recipe, RunRecipe
from rft_data.recipe.references import filled
from rft_data.recipe.section import CHECK_ONLY
from rft_data.recipe.stored import as_it_was_read

Check: TypeAlias = Callable[[Mapping[str, object]], Iterator[Problem]]
"""Finds mistakes in a recipe's tree, whose references are filled in."""

OWN_CODE_FILE = "own_code"
"""File of a run's folder: the folders whose modules its recipe may name."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read, override and check one recipe; modules in its folder can be named from then on.

    Args: overrides: `a.b.0.c=value` strings, the value read as YAML; `~a.b`; overlays by file or name.
    Raises: MissingFileError, or RecipeError listing every problem as `file:line:column key: what`.
    """
    return _checked(_own_layers(path, overrides), checks=[broken_rules])


def check_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """What `load_recipe` does, importing nothing; a recipe with a preset of the user's lacks what that sets.

    Raises: what `load_recipe` raises.
    """
    return _checked(read_layers(path, overrides), CHECK_ONLY, [broken_rules])


def validate_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """`check_recipe` for this machine: files and code that the recipe names must be there.

    Arguments and options are compared with the files of the installed packages, which are not imported.
    Raises: what `load_recipe` raises.
    """
    return _checked(_own_layers(path, overrides), CHECK_ONLY, [broken_rules, problems_here])


def check_text(path: Path) -> Recipe:
    """`check_recipe` for a text of unknown origin: the paths in it are not looked at.

    Arguments and options are compared with the files of the installed packages, which are not imported. What
    it extends is read: the caller says which recipes it may.
    Raises: what `load_recipe` raises.
    """
    checks = [broken_rules, argument_problems, trl_problems]
    return _checked(read_layers(path), CHECK_ONLY, checks, stored_folders=[], foreign=True)


def load_run_recipe(
    path: Path, overrides: Sequence[str] = (), *, command: str = "run", modes: Sequence[str]
) -> RunRecipe:
    """`validate_recipe` and `load_recipe` for `rft COMMAND`, which runs recipes of these modes only."""
    validate_recipe(path, overrides)
    recipe = load_recipe(path, overrides)
    if not isinstance(recipe, RunRecipe) or recipe.mode not in modes:
        instead = "data run" if recipe.mode == Mode.DATA else "run"
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


def load_run(run_dir: Path, changes: Sequence[str] = (), *, of: str = "") -> RunRecipe:
    """The recipe a run began with, from the run's folder.

    Args: changes: none, or `steps=NUMBER`, optimizer steps of its last stage; `groups=NUMBER` for one that
        explores only. of: the run's URL, where the folder is a copy from an object store.
    Raises: RecipeError for another change; MissingFileError if the folder holds no run; ResumeError if it is
        damaged, or its recipe, read from here, names another folder.
    """
    path = run_dir / "recipe.json"
    own_code = run_dir / OWN_CODE_FILE
    folders = [Path(one) for one in own_code.read_text().split(os.pathsep)] if own_code.is_file() else []
    for folder in folders:
        own_code_from(folder)
    if not path.is_file():
        raise MissingFileError(f"{run_dir} holds no run (no recipe.json in it); name a folder under 'runs'.")
    try:
        tree = as_it_was_read(json.loads(path.read_text()))
    except ValueError as err:
        raise ResumeError(f"{path} cannot be read as this run's recipe: {err}") from err
    if not isinstance(tree, dict):
        raise ResumeError(f"{path} holds {type(tree).__name__}, not a run's recipe.")
    tree = _longer(tree, changes)
    try:
        beside = [place for folder in folders for place in folders_beside(folder / path.name)]
        recipe = _checked(Written(tree, Origins(path), [path]), stored_folders=beside)
    except ValueError as err:
        raise ResumeError(f"{path} cannot be read as this run's recipe: {err}") from err
    run_dir = working_folder(of) if on_store(of) else run_dir
    if not isinstance(recipe, RunRecipe) or recipe.folder.resolve() != run_dir.resolve():
        raise ResumeError(
            f"{run_dir} was run as '{getattr(recipe, 'run_dir', recipe.name)}'; resume it under that name, "
            "from the folder it was started in."
        )
    return recipe


def _longer(tree: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Raises: RecipeError for a change of anything but the run's length, and for a shorter one."""
    held = run_length(tree)
    for change in changes:
        key, _, value = change.partition("=")
        if key not in ("steps", "groups") or not value.isdecimal():
            raise RecipeError(
                f"'{change}' cannot be given to rft resume, which goes on with the recipe that the run began "
                "with; only its last stage may take more steps: steps=NUMBER (groups=NUMBER in mode explore)."
            )
        if held is None or held.key != key:
            raise RecipeError(
                f"run '{tree.get('name')}' of mode '{tree.get('mode')}' has no {key} that could be more; "
                f"{'leave it out' if held is None else f'give {held.key}=NUMBER'}."
            )
        if int(value) < held.number:
            raise RecipeError(f"{change} is less than the {held.number} that the run was to take; give more.")
        tree = with_length(tree, Length(key, int(value)))
    return tree


def _own_layers(path: Path, overrides: Sequence[str]) -> Written:
    """The recipe as it is written; modules beside its files can be named from then on."""
    written = read_layers(path, overrides)
    for file in written.files:
        own_code_from(file.parent)
    return written


def _checked(
    written: Written,
    context: Mapping[str, bool] | None = None,
    checks: Sequence[Check] = (),
    stored_folders: Sequence[Path] | None = None,
    *,
    foreign: bool = False,
) -> Recipe:
    """The recipe in a tree; every problem in one RecipeError."""
    _check_version(written)
    found = filled(written, stored_folders, foreign=foreign)
    data, problems = found.tree, list(found.problems)
    mode = data.get("mode")
    if not isinstance(mode, str) or mode not in MODES:
        near = suggest(str(mode), MODES)
        hint = f";{near}" if near else ""
        problems.append(Problem(("mode",), f"found {mode!r}; one of {', '.join(MODES)} is needed{hint}"))
        if not near:
            raise invalid(written.origins, problems)
        mode = str(next(one for one in MODES if f"'{one}'" in near))  # what the rest is meant for
        data = {**data, "mode": mode}
    problems += [problem for check in checks for problem in check(data)]
    try:
        recipe = MODES[mode].model_validate(data, context=context)
    except ValidationError as err:
        unfilled = {problem.loc for problem in found.problems}
        mistakes = (located(data, written.tree, MODES[mode], one) for one in err.errors())
        problems += [one for one in mistakes if one.loc not in unfilled]
        raise invalid(written.origins, problems) from err
    if problems:
        raise invalid(written.origins, problems)
    recipe.keep_references(found.from_env)
    return recipe


def _check_version(written: Written) -> None:
    """Raises: RecipeError for a recipe of another format, whose other keys are not looked at."""
    wrong = version_problem(written.tree.get(KEY, FORMAT))
    if wrong is not None:
        raise invalid(written.origins, [wrong])
