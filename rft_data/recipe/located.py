"""Pydantic's errors about a recipe, as mistakes with their places in its tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rft_data.core.lookup import suggest
from rft_data.core.text import shown
from rft_data.recipe.field_docs import field_docs
from rft_data.recipe.names import TRUNCATING
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.section import Loc, Section
from rft_data.recipe.smallest import smallest
from rft_data.recipe.task_sources import REFUSED, kind_of_source

_FEW = 12
"""So many keys are listed where an unknown one is close to none."""
_WIDTH = 60
_NOTHING = object()
_NO_SECTION = frozenset({"model_type", "model_attributes_type", "dict_type"})
"""Pydantic's words for something else where a section is wanted."""


def located(tree: object, written: object, model: type[BaseModel], problem: ErrorDetails) -> Problem:
    """A problem of pydantic's. `tree` is what was checked; values are shown as they are in `written`."""
    kind = problem["type"]
    loc = _in_tree(tree, problem["loc"], to_missing=kind == "missing")
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        known_kinds = _alike(_sections(model, loc[:-1]), _at(tree, loc[:-1]))
        message = _refused(tree, loc) or _unknown(known_kinds, model, loc)
    elif kind == "missing":
        message = _missing(model, loc) if loc[1:] else _missing_section(tree, model, loc)
    elif kind in _NO_SECTION:
        message = _no_section(written, model, loc)
    elif not loc and kind == "value_error":
        loc = _named_first(tree, message)
    elif message.startswith("Input should "):
        message = f"{_found(written, loc)}{message.removeprefix('Input ')}"
    return Problem(loc, message)


def _named_first(tree: object, message: str) -> Loc:
    """The place that a message about a whole recipe begins with: `stage 1 ...`, `'buffer.uri' ...`."""
    if stage := re.match(r"stage (\d+) ", message):
        return ("stages", int(stage[1]))
    key = re.match(r"'([a-z_]+(?:\.[a-z_]+)*)' ", message)
    loc = tuple(key[1].split(".")) if key else ()
    return loc if _at(tree, loc) is not _NOTHING else ()


def _refused(tree: object, loc: Loc) -> str:
    """The reason that a kind of source has no such key; empty for other keys and sections."""
    if "source" not in loc[:-1]:
        return ""
    source = _at(tree, loc[:-1])
    kind = kind_of_source(source)
    why = REFUSED.get(kind, {}).get(str(loc[-1]))
    return "" if why is None else f"source '{source['use']}' has no '{loc[-1]}': {why}"


def _unknown(sections: list[type[Section]], model: type[BaseModel], loc: Loc) -> str:
    key = str(loc[-1])
    if key in TRUNCATING:
        return (
            f"'{key}' is refused: it samples from a cut-off distribution, whose logprobs the trainer "
            "does not compute, so that importance ratios would be wrong; use 'temperature'"
        )
    known = [name for section in sections for name in section.model_fields]
    if key in {name for section in _sections(model, loc[:-1]) for name in section.model_fields}:
        return "unknown key here: another kind of this section has it; remove it, or choose that kind"
    if close := suggest(key, known):
        return f"unknown key;{close}"
    inside = [name for name, info in model.model_fields.items() if key in _fields_in(info.annotation)]
    if inside and len(loc) == 1:
        return f"unknown key here; it is one of {' and '.join(inside)}: write {inside[0]}: {{{key}: ...}}"
    return (
        f"unknown key; there are {', '.join(dict.fromkeys(known))}" if len(known) <= _FEW else "unknown key"
    )


def _no_section(written: object, model: type[BaseModel], loc: Loc) -> str:
    """A section is wanted, and something else is there; most often a bare name."""
    keys = list(dict.fromkeys(name for one in _sections(model, loc) for name in one.model_fields))
    found = _at(written, loc)
    is_found = _found(written, loc).removesuffix("it ")
    if isinstance(found, str) and "use" in keys:
        return f"{is_found}a section is wanted: write {{use: {shown(found, _WIDTH)}}}"
    of = f", with keys of {', '.join(keys)}" if keys and len(keys) <= _FEW else ""
    return f"{is_found}a section is wanted{of}"


def _alike(sections: list[type[Section]], node: object) -> list[type[Section]]:
    """Of the alternatives of a union, those of the kind that `use` says; all where it says none of them."""
    use = node.get("use") if isinstance(node, dict) else None
    named = [
        one for one in sections if use in get_args(getattr(one.model_fields.get("use"), "annotation", None))
    ]
    return named or sections


def _at(node: Any, loc: Loc) -> Any:
    """The value at a place in the tree; _NOTHING where there is no such place."""
    for part in loc:
        inside = (
            part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        )
        if not inside:
            return _NOTHING
        node = node[part]
    return node


def _missing(model: type[BaseModel], loc: Loc) -> str:
    said = {field_docs(section).get(str(loc[-1]), "") for section in _sections(model, loc[:-1])} - {""}
    return f"is missing. {said.pop()}" if len(said) == 1 else "is missing"


def _missing_section(tree: object, model: type[BaseModel], loc: Loc) -> str:
    """Said at the line of `mode`, which asks for it."""
    mode = tree.get("mode") if isinstance(tree, dict) else None
    wanted = "" if mode is None else f", and mode '{mode}' needs it"
    said = _missing(model, loc).replace("is missing", f"is missing{wanted}", 1)
    line = smallest(str(loc[0]), str(mode))
    return f"{said.removesuffix('.')}. Write for example: {line}" if line else said


def _found(written: object, loc: Loc) -> str:
    """The value as it was written: what a reference brings in may be secret. Empty where a map or list is."""
    node = _at(written, loc)
    return (
        "it "
        if node is _NOTHING or isinstance(node, dict | list)
        else f"found {shown(repr(node), _WIDTH)}; it "
    )


def _in_tree(tree: object, loc: Loc, *, to_missing: bool) -> Loc:
    """Pydantic's location without the union tags it inserts; a missing key stays as the last part."""
    kept: list[str | int] = []
    node: Any = tree
    for i, part in enumerate(loc):
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)
        if inside:
            node = node[part]
            kept.append(part)
        elif to_missing and i == len(loc) - 1 and isinstance(node, dict):
            kept.append(part)
    return tuple(kept)


def _sections(model: type[BaseModel], loc: Loc) -> list[type[Section]]:
    """The section at `loc`, or all its alternatives where it is a union."""
    found: list[type[BaseModel]] = [model]
    for part in loc:
        if isinstance(part, str):
            found = [
                one
                for m in found
                if part in m.model_fields
                for one in _models(m.model_fields[part].annotation)
            ]
    return [one for one in found if issubclass(one, Section)]


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """The sections that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models(one)


def _fields_in(annotation: object) -> set[str]:
    return {name for section in _models(annotation) for name in section.model_fields}
