"""One mistake in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from rft_data.recipe.leaves import dotted
from rft_data.recipe.section import Loc


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake."""

    loc: Loc
    """Its place in the recipe."""
    message: str
    """What was found, what is wanted, and what to do."""

    def __str__(self) -> str:
        return f"{dotted(self.loc) or 'recipe'}: {self.message}"
