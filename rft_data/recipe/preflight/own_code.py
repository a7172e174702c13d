"""Code of the user's that a recipe names by import path or file: whether it is there, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from rft_data.core.lookup import FILE_SUFFIX, MOVED, is_import_path, suggest
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.source_code import defines, names, parsed_now
from rft_data.recipe.preflight.tree import Tree, batch_operators, operators
from rft_data.recipe.section import Loc


def code_problems(tree: Tree) -> Iterator[Problem]:
    """Import paths that lead nowhere."""
    for loc, name in [*_uses(tree, ()), *_operator_paths(tree)]:
        if (wrong := _wrong(MOVED.get(name, name))) is not None:
            yield Problem(loc, f"'{name}': {wrong}")


def _uses(node: object, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """Every `use` and `algorithm` that is an import path."""
    if isinstance(node, Mapping):
        for key, below in node.items():
            if key in ("use", "algorithm") and isinstance(below, str) and ":" in below:
                yield (*loc, key), below
            yield from _uses(below, (*loc, str(key)))
    elif isinstance(node, list):
        for place, below in enumerate(node):
            yield from _uses(below, (*loc, place))


def _operator_paths(tree: Tree) -> Iterator[tuple[Loc, str]]:
    for loc, name, _ in [*operators(tree), *batch_operators(tree)]:
        if ":" in name:
            yield loc, name


def _wrong(name: str) -> str | None:
    module, _, attribute = name.rpartition(":")
    if not is_import_path(name):
        return "it is no import path; write 'package.module:Name' or 'folder/file.py:Name'"
    if module.endswith(FILE_SUFFIX):
        path = Path(module)
        if not path.is_file():
            near = sorted(str(one) for one in path.parent.glob("*.py")) if path.parent.is_dir() else []
            hint = suggest(str(path), near) or " give its path"
            return f"there is no file '{module}', seen from {Path.cwd()} or the recipe's folder;{hint}"
        return _lacks(path, attribute)
    spec = _spec(module.split("."))
    if spec is None:
        return (
            f"there is no module '{module}'; a module is found in the recipe's folder, on PYTHONPATH, or "
            "installed; or write 'folder/file.py:Name'"
        )
    origin = Path(spec.origin or "")
    return _lacks(origin, attribute) if origin.suffix == FILE_SUFFIX and origin.is_file() else None


def _lacks(path: Path, attribute: str) -> str | None:
    try:
        module = parsed_now(path)
    except SyntaxError as err:
        return f"{path}:{err.lineno} is not valid Python: {err.msg}"
    if defines(module, attribute):
        return None
    return f"{path} has no '{attribute}';{suggest(attribute, names(module)) or ' name something that it has'}"


def _spec(parts: Sequence[str]) -> ModuleSpec | None:
    """The file of a module; its packages are not imported."""
    spec = find_spec(parts[0])
    for part in parts[1:]:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # by its last name: of a package without __init__.py, the full name needs the imported parent
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec
