"""A recipe's tree from its layers: the files it extends, its own file, overlays and the command line.

Maps are merged key by key; any other value, a list too, is replaced as a whole. Nothing is checked here but
that each file is of a format that is read and fits on the others, and no reference is filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.lookup import suggest
from rft_data.recipe.format_version import FORMAT, KEY, version_problem
from rft_data.recipe.invalid import invalid_at
from rft_data.recipe.leaves import dotted
from rft_data.recipe.operator_lists import name_operators
from rft_data.recipe.origins import COMMAND_LINE, Origin, Origins
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.section import Loc
from rft_data.recipe.shipped import shipped_recipes
from rft_data.recipe.yaml_text import MAX_DEPTH, parse_yaml

EXTENDS = "extends"
"""The key of a file that names the recipes it starts from."""
_DELETES = "~"
_SUFFIXES = (".yaml", ".yml")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A recipe as it is written: plain values, with the references in them."""

    tree: dict[str, object]
    origins: Origins
    files: Sequence[Path]
    """Every file that was read; the named one is `origins.file`."""


def read_layers(path: Path, changes: Sequence[str] = ()) -> Written:
    """A recipe with the files it extends, and then the changes, in order.

    Args: changes: `a.b.0.c=value`, the value read as YAML; `~a.b`, which deletes a key; or an overlay, the
        file or name of another recipe, whose values are merged over this one's.
    Raises: MissingFileError; RecipeError when a file is no YAML map, or a change cannot be made.
    """
    layers = _Layers(path)
    layers.add(path, ())
    for change in changes:
        if change.startswith(_DELETES):
            layers.delete_key(change)
        elif "=" not in change and change.endswith(_SUFFIXES):
            layers.add(named_recipe(Path(change)), ())
        else:
            layers.override(change)
    name_operators(layers.tree)
    return Written(layers.tree, layers.origins, tuple(layers.files))


def named_recipe(path: Path) -> Path:
    """The file at `path`, or else the shipped recipe of that name; `path` itself if there is neither."""
    if path.exists() or len(path.parts) != 1:
        return path
    name = path.name.removesuffix(".yaml")
    return next((one.path for one in shipped_recipes() if one.name == name), path)


class _Layers:
    """The tree so far."""

    def __init__(self, path: Path) -> None:
        self.tree: dict[str, object] = {}
        self.origins = Origins(path)
        self.files: dict[Path, Path] = {}
        """The files that were merged, by their resolved paths: each once, where it first comes."""

    def add(self, path: Path, around: tuple[Path, ...]) -> None:
        """Merge a file, after those that it extends.

        Args: around: the files that extend it, outermost first.
        """
        file = path.resolve()
        if file in self.files:
            return
        over = _parsed(path)
        if (wrong := version_problem(over.get(KEY, FORMAT))) is not None:  # the file over it may say another
            raise self._error(wrong.loc, _origin(path, over, KEY), wrong.message)
        for parent in self._parents(path, over):
            if (circle := [*around, path, parent])[-1].resolve() in [one.resolve() for one in circle[:-1]]:
                raise self._error(
                    (EXTENDS,), _origin(path, over, EXTENDS), f"a circle: {' -> '.join(map(str, circle))}"
                )
            self.add(parent, (*around, path))
        self.files[file] = path
        self._merge(self.tree, {key: one for key, one in over.items() if key != EXTENDS}, over, path, ())

    def _parents(self, path: Path, over: Any) -> list[Path]:
        given = over.get(EXTENDS, [])
        names = [given] if isinstance(given, str) else given
        at = _origin(path, over, EXTENDS)
        if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
            raise self._error(
                (EXTENDS,), at, f"found {given!r}; wanted the file or name of a recipe, or a list of them"
            )
        return [self._parent(path, name, at) for name in names]

    def _parent(self, path: Path, name: str, at: Origin) -> Path:
        beside = path.parent / name
        found = beside if beside.is_file() else named_recipe(Path(name))
        if found.is_file() and (found == beside or found.is_absolute()):
            return found
        near = [*(one.name for one in path.parent.glob("*.yaml")), *(one.name for one in shipped_recipes())]
        raise self._error(
            (EXTENDS,),
            at,
            f"'{name}' is neither a file, seen from '{path.parent}', nor the name of a shipped recipe;"
            f"{suggest(name, near) or ' give its path, or a name of: rft recipe list'}",
        )

    def _merge(
        self, into: dict[str, Any], over: dict[Any, Any], lines: Any, file: Path | None, loc: Loc
    ) -> None:
        """Merge a map over another, deletions first. Args: lines: the map of ruamel's, with its lines."""
        for key, value in over.items():
            if str(key).startswith(_DELETES):
                at = _origin(file, lines, key, self.origins.find(loc))
                gone = (*loc, str(key)[1:])
                if value is not None:
                    raise self._error(loc, at, f"'{key}' deletes a key and takes no value; found {value!r}")
                self._delete(into, str(key)[1:], gone, at)
        for key, value in over.items():
            if not str(key).startswith(_DELETES):
                here = (*loc, str(key))
                at = _origin(file, lines, key, self.origins.find(loc))
                into[str(key)] = self._put(into.get(str(key)), value, here, at)

    def _put(self, before: object, value: Any, loc: Loc, at: Origin) -> object:
        """The result of writing `value` over `before`."""
        if isinstance(value, dict):
            if isinstance(before, list) and value and all(_is_number(key) for key in value):
                self._entries(before, value, loc, at)
                return before
            if not isinstance(before, dict):
                self.origins.forget(loc)
                before = {}
            self.origins.note(loc, at)
            self._merge(before, value, value, at.file, loc)
            return before
        self.origins.forget(loc)
        self.origins.note(loc, at)
        if isinstance(value, list):
            return [
                self._put(None, one, (*loc, i), _origin(at.file, value, i, at)) for i, one in enumerate(value)
            ]
        return _plain(value)

    def _entries(self, before: list[Any], value: Any, loc: Loc, at: Origin) -> None:
        """Change entries of a list by their numbers."""
        for key, one in value.items():
            there = _origin(at.file, value, key, at)
            if str(key).startswith(_DELETES):
                self._delete(before, str(key)[1:], (*loc, int(str(key)[1:])), there)
            elif int(key) >= len(before):
                raise self._error(
                    (*loc, int(key)), there, f"there is no entry {key} of {len(before)}, from 0"
                )
            else:
                before[int(key)] = self._put(before[int(key)], one, (*loc, int(key)), there)

    def _delete(self, node: Any, key: str, loc: Loc, at: Origin) -> None:
        """Delete a key of a map or an entry of a list, which must be there."""
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            del node[int(key)]
            self.origins.remove_entry(loc)
        elif isinstance(node, dict) and key in node:
            del node[key]
            self.origins.forget(loc)
        else:
            hint = suggest(key, node) if isinstance(node, dict) else ""
            raise self._error(loc, at, f"there is nothing to delete;{hint or ' remove the line'}")

    def delete_key(self, text: str) -> None:
        """`~a.b.0`."""
        node, loc = self._inside(text, text[1:].split("."))
        self._delete(node, str(loc[-1]), loc, COMMAND_LINE)

    def override(self, text: str) -> None:
        """`a.b.0.c=value`; a map on the way is created, a list entry must exist."""
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise RecipeError(
                f"override {text!r} is not of the form key=value, for example seed=1, and no overlay, which "
                "ends with .yaml."
            )
        parsed = parse_yaml(value, f"the value of override '{key}'")
        node, loc = self._inside(text, key.split("."), create=True)
        try:
            node[loc[-1]] = parsed
        except (IndexError, TypeError) as err:
            raise _nowhere(text, loc[:-1], node) from err
        self.origins.forget(loc)
        self.origins.note(loc, COMMAND_LINE)

    def _inside(self, text: str, parts: Sequence[str], *, create: bool = False) -> tuple[Any, Loc]:
        """The map or list that holds a dotted key, and the key's place."""
        if len(parts) > MAX_DEPTH + 1:
            raise RecipeError(f"override {text!r} names a place deeper than {MAX_DEPTH} keys.")
        node: Any = self.tree
        loc: Loc = ()
        try:
            for part in parts[:-1]:
                if isinstance(node, list):
                    node, loc = node[int(part)], (*loc, int(part))
                    continue
                if create and part not in node:
                    node[part] = {}
                    self.origins.note((*loc, part), COMMAND_LINE)
                node, loc = node[part], (*loc, part)
            last = int(parts[-1]) if isinstance(node, list) else parts[-1]
        except (IndexError, KeyError, TypeError, ValueError) as err:
            raise _nowhere(text, loc, node) from err
        return node, (*loc, last)

    def _error(self, loc: Loc, at: Origin, message: str) -> RecipeError:
        return invalid_at(self.origins, at, Problem(loc, message))


def _nowhere(text: str, loc: Loc, node: Any) -> RecipeError:
    """An override of a place that is not there. Args: loc: how far it leads; node: what is there."""
    key, verb = text.removeprefix(_DELETES).partition("=")[0], "delete" if text[0] == _DELETES else "set"
    inside = dotted(loc) or "the recipe"
    if isinstance(node, list):
        has = f"'{inside}' has {len(node)} entries, from 0"
    elif isinstance(node, dict):
        has = f"{inside} has {', '.join(map(str, node)) or 'no keys'}"
    else:
        has = f"'{inside}' is no map and no list"
    return RecipeError(f"override {text!r}: there is no '{key}' in the recipe to {verb}; {has}.")


def _parsed(path: Path) -> Any:
    """A file's map, with its lines."""
    if not path.is_file():
        shipped = [one.name for one in shipped_recipes()] if len(path.parts) == 1 else []
        near = suggest(path.name, [*shipped, *(one.name for one in path.parent.glob("*.yaml"))])
        raise MissingFileError(f"there is no recipe at {path};{near} the shipped ones: rft recipe list.")
    if path.stat().st_size > _MAX_BYTES:
        raise RecipeError(f"{path} has {path.stat().st_size} bytes; a recipe has at most {_MAX_BYTES}.")
    try:
        text = path.read_text()
    except UnicodeDecodeError as err:
        raise RecipeError(f"{path} is not valid YAML: {err}") from err
    tree = _tree(text, str(path))
    if not isinstance(tree, dict):
        kind = "a list" if isinstance(tree, list) else "one value"
        found = "is empty" if tree is None else f"holds {kind}, not a map of sections"
        raise RecipeError(
            f"{path} {found}; a recipe begins with the keys recipe, name and mode: start from one of the "
            "folder 'recipes'."
        )
    return tree


@lru_cache(maxsize=32)
def _tree(text: str, place: str) -> object:
    """The content of a file, parsed once: a command reads a recipe several times. Merging copies it."""
    return parse_yaml(text, place, keep_lines=True)


def _origin(file: Path | None, lines: Any, key: object, around: Origin | None = None) -> Origin:
    """The line of a key of ruamel's map, or of an entry of its list; what `<<` merged has none."""
    is_map = isinstance(lines, dict)
    try:
        line, column = lines.lc.key(key) if is_map else lines.lc.item(key)
    except (AttributeError, KeyError, IndexError, TypeError):
        return around or Origin(file)
    return Origin(file, line + 1, column + 1)


def _is_number(key: object) -> bool:
    return str(key).removeprefix(_DELETES).isdecimal()


def _plain(value: object) -> object:
    """A scalar without ruamel's own type, which would be pickled into a trainer's checkpoint."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
