"""Fills in what stands for another value: `${ref:key}`, `${env:NAME}` and `${env:NAME:-default}`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest
from rft_data.core.masking import hide
from rft_data.recipe.layers import Written
from rft_data.recipe.leaves import dotted, leaves
from rft_data.recipe.paths import folders_beside, found_path, search_order
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.public_keys import is_public
from rft_data.recipe.section import Loc
from rft_data.recipe.yaml_text import MAX_DEPTH, parse_yaml

_ENV = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_REF = re.compile(r"\$\{ref:([^{}]+)\}")
_BEGUN = re.compile(r"\$\{(?:env|ref):[^}]*\}?")
"""Text that was meant to be a reference."""
_MAX_VALUES, _MAX_TEXT = 20_000, 1 << 16
"""Most values that references may stand for, and the longest text that they may make."""


class _Refused(Exception):
    """A reference that cannot be filled in; the text says why."""


@dataclass(slots=True)
class Filled:
    """A recipe's tree with its references filled in."""

    tree: Any = None
    problems: list[Problem] = field(default_factory=list)
    from_env: dict[Loc, str] = field(default_factory=dict)
    """Values that the environment had a part in, as references to it: what is stored in their place."""


def filled(written: Written, stored: Sequence[Path] | None = None, *, foreign: bool = False) -> Filled:
    """Fill in the references of a recipe, and find the files that it names.

    Args: stored: of a recipe that a run stored, the folders of its files; its paths are from the working
        directory. None: paths are seen from the file that wrote them too. foreign: somebody else wrote it, to
        whom no value of the environment is shown; else those are shown that stand at keys of paths and ids.
    """
    filler = _Filler(written, stored, foreign=foreign)
    filler.out.tree = filler.fill(written.tree, ())
    return filler.out


class _Filler:
    def __init__(self, written: Written, stored: Sequence[Path] | None, *, foreign: bool) -> None:
        self._written = written
        self._foreign = foreign
        self._stored = stored
        self._inside: list[str] = []
        """The keys that are being filled in, each referred to by the one before."""
        self._copied: list[tuple[Loc, Loc]] = []
        """Places where the value of another key is put, and the places of those keys."""
        self._values = 0
        self.out = Filled()

    def fill(self, node: object, loc: Loc) -> object:
        """A value of the tree; one that is a whole reference to the environment is read as YAML."""
        try:
            return self._filled(node, loc)
        except _Refused as err:
            if self._inside:  # of the reference that asked for this value
                raise
            self.out.problems.append(Problem(loc, str(err)))
            return None

    def _filled(self, node: object, loc: Loc) -> object:
        self._count()
        if isinstance(node, Mapping):
            return {
                self._path(str(key), (), loc): self.fill(one, (*loc, str(key))) for key, one in node.items()
            }
        if isinstance(node, list):
            return [self.fill(one, (*loc, i)) for i, one in enumerate(node)]
        if not isinstance(node, str):
            return node
        if whole := _REF.fullmatch(node):
            return self._copy(whole[1].strip(), loc)
        return self._text(self._without_refs(node), loc)

    def _copy(self, key: str, loc: Loc) -> object:
        """The value of another key."""
        self._enter(key)
        try:
            target, value = self._target(key)
            self._copied.append((loc, target))
            try:
                return self._filled(value, loc)
            finally:
                self._copied.pop()
        finally:
            self._inside.pop()

    def _text(self, text: str, loc: Loc) -> object:
        """A text without references to keys."""
        found = _ENV.sub(_variable, text)
        if self._foreign or not is_public(loc, found):
            names = {one[1] for one in _ENV.finditer(text)}
            hide({f"${{env:{name}}}": os.environ[name] for name in names if name in os.environ})
        if begun := _BEGUN.search(_ENV.sub("", text)):
            raise _Refused(
                f"'{begun[0]}' is no reference; write ${{ref:key.path}}, ${{env:NAME}} or "
                "${env:NAME:-default}"
            )
        if _ENV.search(text):
            self.out.from_env[loc] = text
        if _ENV.fullmatch(text):
            value = _as_yaml(found)
            return self._path(value, loc, loc) if isinstance(value, str) else value
        return self._path(found, loc, loc)

    def _without_refs(self, text: str) -> str:
        """A text with those of its references filled in that name another key."""

        def one(match: re.Match[str]) -> str:
            key = match[1].strip()
            self._enter(key)
            try:
                _, value = self._target(key)
                if isinstance(value, dict | list):
                    raise _Refused(f"'{match[0]}' is a {_kind(value)}, which cannot stand inside a text")
                return self._without_refs(value) if isinstance(value, str) else json.dumps(value)
            finally:
                self._inside.pop()

        found = _REF.sub(one, text)
        if len(found) > _MAX_TEXT:
            raise _Refused(f"its references make a text of more than {_MAX_TEXT} characters")
        return found

    def _enter(self, key: str) -> None:
        chain = [*self._inside, key]
        if key in self._inside or len(chain) > MAX_DEPTH:
            raise _Refused(f"its references go in a circle: {' -> '.join(chain[:6])}")
        self._inside.append(key)

    def _target(self, key: str) -> tuple[Loc, object]:
        """The place of a dotted key, and what is written there."""
        node: Any = self._written.tree
        loc: Loc = ()
        for part in key.split("."):
            try:
                loc = (*loc, int(part) if isinstance(node, list) else part)
                node = node[loc[-1]]
            except (IndexError, KeyError, TypeError, ValueError):
                known = [dotted(at) for at, _ in leaves(self._written.tree)]
                raise _Refused(
                    f"nothing is written at '{key}', which '${{ref:{key}}}' names;{suggest(key, known)} "
                    "Presets and defaults cannot be referred to"
                ) from None
        return loc, node

    def _count(self) -> None:
        self._values += bool(self._inside)
        if self._values > _MAX_VALUES:
            raise RecipeError(
                f"the references of {self._written.origins.file} stand for more than {_MAX_VALUES} values."
            )

    def _path(self, value: str, key: Loc, loc: Loc) -> str:
        """A text, as a path if it is one.

        Args: key: its place, () for a key of a map. loc: the place of the text or of that map.
        """
        return found_path(value, key, partial(self._order, loc))

    def _order(self, loc: Loc, path: str) -> Sequence[Path]:
        """The folders in which a path that is written at `loc` is looked for."""
        if self._stored is not None:
            return [Path(), *self._stored]
        if self._copied:
            at, target = self._copied[-1]
            loc = (*target, *loc[len(at) :])
        origins = self._written.origins
        return search_order(path, folders_beside(origins.find(loc).file or origins.file))


def _variable(match: re.Match[str]) -> str:
    name, default = match.groups()
    if name not in os.environ and default is None:
        raise _Refused(f"environment variable {name} is not set; set it, or write ${{env:{name}:-default}}")
    return os.environ.get(name, default or "")


def _as_yaml(value: str) -> object:
    """A variable's value, read as YAML; errors do not say what is wrong with it: it may be a secret."""
    try:
        return parse_yaml(value, "")
    except RecipeError:
        raise _Refused(
            "the environment variable's value is not valid YAML; to have it taken as text, put quotes around "
            "it, inside the variable"
        ) from None


def _kind(value: object) -> str:
    return "list" if isinstance(value, list) else "map"
