"""What Pydantic says of a recipe, as mistakes with their places in its tree."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rft_data.core.lookup import suggest
from rft_data.recipe.names import TRUNCATING
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.section import Loc


def located(tree: object, model: type[BaseModel], problem: ErrorDetails) -> Problem:
    """A problem of pydantic's."""
    loc = _in_tree(tree, problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        known = _known_fields(model, loc[:-1])
        close = suggest(str(loc[-1]), known)
        message = f"unknown key;{close}" if close else "unknown key"
        if loc[-1] in known:
            message = "unknown key here: another kind of this section has it; remove it, or choose that kind"
        if loc[-1] in TRUNCATING:
            message = (
                f"'{loc[-1]}' is refused: it samples from a cut-off distribution, whose logprobs the trainer "
                "does not compute, so that importance ratios would be wrong; use 'temperature'"
            )
    return Problem(loc, message)


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
