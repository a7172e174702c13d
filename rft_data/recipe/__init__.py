"""Recipes: typed YAML. Pydantic lives here and nowhere else.

A name is loaded when it is first used: to list the shipped recipes takes no Pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rft_data.recipe.load import load_recipe
    from rft_data.recipe.recipe import Recipe

__all__ = ["Recipe", "load_recipe"]

_PLACES = {"Recipe": "recipe", "load_recipe": "load"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
