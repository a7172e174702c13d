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
    """The found value, the wanted one, and the mend."""

    def __str__(self) -> str:
        return f"{dotted(self.loc) or 'recipe'}: {self.message}"
