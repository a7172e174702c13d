"""The one error about all mistakes of a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.core.errors import RecipeError
from rft_data.recipe.leaves import dotted
from rft_data.recipe.origins import Origin, Origins
from rft_data.recipe.preflight.problem import Problem


def invalid(
    origins: Origins, problems: Sequence[Problem], verdict: str = "is not a valid recipe"
) -> RecipeError:
    """An error with each problem once, by their lines in the files, and as data in its `mistakes`."""
    ordered = sorted(dict.fromkeys(problems), key=lambda one: origins.order(one.loc))
    return _error(origins, [(origins.find(one.loc), one) for one in ordered], verdict)


def invalid_at(origins: Origins, at: Origin, problem: Problem) -> RecipeError:
    """An error with one problem, about what is written at `at`."""
    return _error(origins, [(at, problem)])


def _error(
    origins: Origins, placed: Sequence[tuple[Origin, Problem]], verdict: str = "is not a valid recipe"
) -> RecipeError:
    lines = [f"  {at} {one}" for at, one in placed]
    error = RecipeError("\n".join([f"{origins.file} {verdict}:", *lines]))
    error.mistakes = [
        {
            "file": None if at.file is None else str(at.file),
            "line": None if at.file is None else at.line,
            "column": None if at.file is None else at.column,
            "key": dotted(one.loc),
            "message": one.message,
        }
        for at, one in placed
    ]
    return error
