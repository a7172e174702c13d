"""Reads parts of a parsed recipe that may be malformed: what has an unexpected form is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rft_data.recipe.section import Loc

Tree = Mapping[str, object]
_OPERATORS = (("task_ops",), ("experience_ops",), ("task_upkeep", "ops"))


def value(tree: object, *keys: str) -> object:
    """The value at these keys; None where there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def entries(tree: Tree, *keys: str) -> Iterator[tuple[Loc, Tree]]:
    """The maps in the list at these keys, with their places."""
    found = value(tree, *keys)
    for place, entry in enumerate(found if isinstance(found, list) else []):
        if isinstance(entry, Mapping):
            yield (*keys, place), entry


def operators(tree: Tree) -> Iterator[tuple[Loc, str, object]]:
    """(place, name, arguments) of every operator."""
    for keys in _OPERATORS:
        for loc, entry in entries(tree, *keys):
            yield from (((*loc, str(name)), str(name), args) for name, args in entry.items())


def batch_operators(tree: Tree) -> Iterator[tuple[Loc, str, object]]:
    """(place, name, arguments) of every operator on a training batch."""
    for loc, stage in entries(tree, "stages"):
        for place, entry in entries(stage, "batch_ops"):
            yield from (((*loc, *place, str(name)), str(name), args) for name, args in entry.items())
