"""In which values two recipes differ, after presets and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rft_data.recipe.leaves import dotted, leaves
from rft_data.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value is not the same in both."""

    key: str
    values: dict[str, object]
    """The value by side, `left` or `right`; a side that lacks the key is not in it."""


def differences(left: Recipe, right: Recipe) -> Iterator[Difference]:
    """Every key that differs, in the order of the recipes. Values of the environment show as references."""
    sides = {
        side: {dotted(key): value for key, value in leaves(recipe.saved())}
        for side, recipe in (("left", left), ("right", right))
    }
    for key in dict.fromkeys(key for values in sides.values() for key in values):
        found = {side: values[key] for side, values in sides.items() if key in values}
        if len(found) == 1 or found["left"] != found["right"]:
            yield Difference(key, found)
