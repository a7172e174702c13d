"""Files that a recipe names: from which folders their relative paths are seen."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rft_data.recipe.section import Loc
from rft_data.recipe.shipped import shipped_folder

_CODE = re.compile(r"([^:\s]+\.py)(:[A-Za-z_]\w*)")
"""`folder/file.py:Name`."""
_SPLIT = re.compile(r"([^:]+)(:\w+)")
"""`FOLDER:SPLIT`, a split of a saved dataset, which imports read."""
_KEYS = (("path",), ("teacher",))
"""Keys of files and folders that a run reads."""
_EXPLICIT = ("./", "../")


def folders_beside(file: Path) -> list[Path]:
    """The folders from which paths in a recipe's file are seen, beside the working directory."""
    if file.parent.resolve() == shipped_folder().resolve():  # a shipped one names recipes/samples/...
        return [file.parent, file.parent.parent]
    return [file.parent]


def search_order(path: str, folders: Sequence[Path]) -> list[Path]:
    """Where a path is looked for: one that begins with `./` or `../` in the folders first, others after."""
    return [*folders, Path()] if path.startswith(_EXPLICIT) else [Path(), *folders]


def found_path(value: str, loc: Loc, order: Callable[[str], Sequence[Path]]) -> str:
    """A text of a recipe; if it is the path of something that is there, the path from the working directory.

    Args: order: the folders that a path is looked for in. What is in none of them stays as it is written.
    """
    code = _CODE.fullmatch(value)
    if code is None and loc[-1:] not in _KEYS:
        return value
    path, name = code.groups() if code else (value, "")
    if loc[:1] == ("imports",) and (split := _SPLIT.fullmatch(value)):
        path, name = split.groups()
    if not path or Path(path).is_absolute():
        return value
    first = next((folder for folder in order(path) if (folder / path).exists()), None)
    if first is None or first.resolve() == Path.cwd():
        return value
    return os.path.relpath(first / path) + name
