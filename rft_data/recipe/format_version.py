"""The format of recipes, which their key `recipe` names."""

from __future__ import annotations

from rft_data.core.version import __version__
from rft_data.recipe.preflight.problem import Problem

FORMAT = 1
"""The newest one, and what a recipe without the key has."""
KEY = "recipe"


def version_problem(found: object) -> Problem | None:
    """The mistake in a recipe's format; None for one that is read here."""
    if found == FORMAT and not isinstance(found, bool):
        return None
    message = f"found {found!r}; {FORMAT} is the only format that there has been: write recipe: {FORMAT}"
    if isinstance(found, int) and found > FORMAT:
        message = f"found {found}; rft-data {__version__} reads formats up to {FORMAT}: install a later one"
    return Problem((KEY,), message)
