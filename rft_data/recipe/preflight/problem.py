"""One mistake in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from rft_data.recipe.section import Loc


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake."""

    loc: Loc
    """Its place in the recipe."""
    message: str
    """What was found, what is wanted, and what to do."""
