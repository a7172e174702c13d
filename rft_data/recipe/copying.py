"""A copy of a shipped recipe, with the files that it names beside it."""

from __future__ import annotations

import re
from pathlib import Path

from rft_data.core.errors import RecipeError
from rft_data.recipe.json_schema import TITLE, schema_text
from rft_data.recipe.shipped import shipped_folder, shipped_recipe

SCHEMA_FILE = "recipe.schema.json"
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
"""Tells an editor which JSON Schema checks and completes the file."""
_MODULE = re.compile(r"\brecipes\.((?:\w+\.)*)(\w+):")
_DATA = re.compile(r"\brecipes/(samples)(?=\}?/([\w.]+))")
_FILE = re.compile(r"\brecipes/(?=(\w+)\.py\b)")
_RECIPE = re.compile(r"\brecipes/(\w+)\.yaml")


def copy_recipe(name: str, target: Path) -> list[Path]:
    """Write a shipped recipe to `target`, a file or a folder; returns what was written, the recipe first.

    What it names in the package is written beside it, and named from there.
    Raises: UnknownComponentError; RecipeError when another file is in the way (nothing is written then).
    """
    shipped = shipped_recipe(name)
    path = target if target.suffix in (".yaml", ".yml") else target / shipped.path.name
    text, folder = shipped.path.read_text(), shipped_folder()
    wanted = {path: SCHEMA_LINE + _named_from_here(text, shipped.name, path.name)}
    files = (("", module) for module in _FILE.findall(text))
    for inside, module in dict.fromkeys((*_MODULE.findall(text), *files)):
        source = folder / inside.replace(".", "/") / f"{module}.py"
        wanted[path.parent / source.name] = source.read_text()
    for sub, file in dict.fromkeys(_DATA.findall(text)):
        wanted[path.parent / sub / file] = (folder / sub / file).read_text()
    wanted[path.parent / SCHEMA_FILE] = schema_text()
    write_new(wanted)
    return list(wanted)


def write_new(files: dict[Path, str]) -> None:
    """Write files that are not there yet, or are there with this content; a schema of ours is replaced.

    Raises: RecipeError when one is there with another content; nothing is written then.
    """
    for path, text in files.items():
        if path.exists() and not _is_schema(path) and (not path.is_file() or path.read_text() != text):
            raise RecipeError(f"{path} is there already, with another content; name another place.")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _is_schema(path: Path) -> bool:
    """Whether a file is the schema of recipes, perhaps of another version, which is not edited by hand."""
    return path.name == SCHEMA_FILE and path.is_file() and f'"{TITLE}"' in path.read_text()


def _named_from_here(text: str, name: str, own: str) -> str:
    """The recipe's text, with files beside it in place of those of the package."""
    text = _FILE.sub("", _DATA.sub(r"\1", _MODULE.sub(r"./\2.py:", text)))
    return _RECIPE.sub(lambda found: own if found[1] == name else found[1], text)
