"""Mistakes in a recipe, as lines that say where in its file they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rft_data.core.lookup import suggest
from rft_data.recipe.names import TRUNCATING
from rft_data.recipe.section import Loc

_LINE = re.compile(r":(\d+):(\d+) ")


def line_number(problem: str) -> tuple[int, int]:
    """Line and column of a problem's text, (0, 0) without any."""
    found = _LINE.search(problem)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def described(path: Path, tree: object, model: type[BaseModel], problem: ErrorDetails) -> str:
    """A problem of pydantic's."""
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
    return f"{place(path, tree, loc)} {dotted(loc) or 'recipe'}: {message}"


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


def place(path: Path, tree: object, loc: Loc) -> str:
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


def dotted(loc: Loc) -> str:
    """A place as overrides write it."""
    return ".".join(str(part) for part in loc)
