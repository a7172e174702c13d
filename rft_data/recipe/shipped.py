"""The recipes that ship with this package, found by name, also in an installed wheel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile
from pathlib import Path

from rft_data.core.errors import UnknownComponentError
from rft_data.core.lookup import suggest

FACTS = ("For", "Needs", "Takes")
"""Parts of a header, each from the beginning of a line: for whom a recipe is, its needs, its time."""
_FACT = re.compile(
    rf"^({'|'.join(FACTS)}): (.+?)(?=^(?:{'|'.join(FACTS)}): |^$|\Z)", re.MULTILINE | re.DOTALL
)
"""A fact goes on to the next one, or to an empty line."""


@dataclass(frozen=True, slots=True)
class ShippedRecipe:
    """One recipe file of the package."""

    name: str
    """How commands call it: the file's name without its end."""
    path: Path
    about: str
    """The first sentence of its header."""
    facts: Mapping[str, str]
    """The FACTS that its header states."""


def shipped_folder() -> Path:
    """The folder of the package `recipes`."""
    return Path(str(files("recipes")))


def shipped_recipes() -> list[ShippedRecipe]:
    """Every shipped recipe, by name."""
    return [_read(path) for path in sorted(shipped_folder().glob("*.yaml"))]


def shipped_recipe(name: str) -> ShippedRecipe:
    """The shipped recipe called `name`. Raises: UnknownComponentError."""
    known = {one.name: one for one in shipped_recipes()}
    wanted = name.removesuffix(".yaml")
    if wanted not in known:
        raise UnknownComponentError(
            f"no shipped recipe is called '{name}';{suggest(wanted, known)} Shipped: {', '.join(known)}."
        )
    return known[wanted]


def _read(path: Path) -> ShippedRecipe:
    header = "".join(takewhile(lambda line: line.startswith("#"), path.open()))
    text = re.sub(r"^#[ \t]*", "", header, flags=re.MULTILINE)
    facts = {name: " ".join(said.split()) for name, said in _FACT.findall(text)}
    about = " ".join(_FACT.sub("", text).split())
    return ShippedRecipe(path.stem, path, re.split(r"(?<=\.)\s", about, maxsplit=1)[0], facts)
