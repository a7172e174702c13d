"""Every value of a recipe's tree with its place."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.recipe.section import Loc


def leaves(node: object, key: Loc = ()) -> Iterator[tuple[Loc, object]]:
    """Every value that is no map or list, with its place; an empty map or list is a value too."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from leaves(value, (*key, name))
    elif isinstance(node, list) and node:
        for place, value in enumerate(node):
            yield from leaves(value, (*key, place))
    else:
        yield key, node


def dotted(key: Loc) -> str:
    """A place as overrides name it: `stages.1.steps`."""
    return ".".join(str(part) for part in key)
