"""The process in which recipes of the page's form are read and checked."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft_data.run.child_answer import answer

if TYPE_CHECKING:
    from rft_data.recipe.recipe import Recipe


def work(request: Any) -> dict[str, object]:
    """The form as it is shown again. Args: request: `models`, and a `Request` of the form."""
    from rft_data.recipe.form.submission import worked_on  # after the memory is limited

    models = frozenset(request.pop("models"))
    return dict(worked_on(request, lambda recipe: _outlook(recipe, models)))


def _outlook(recipe: Recipe, models: Collection[str]) -> list[tuple[str, str]]:
    """The outlook of a run. Args: models: folders that may be looked at, as recipes name them."""
    from rft_data.core.errors import IntegrityError
    from rft_data.recipe.kinds import with_model
    from rft_data.run.doctor.machine import gpu_lines
    from rft_data.run.outlook.lines import run_lines
    from rft_data.run.outlook.model_size import ModelSize, folder_size
    from rft_data.run.outlook.verdicts import cards_in

    def look(folder: Path) -> ModelSize | None:
        return folder_size(folder) if str(folder) in models else None

    run = with_model(recipe)
    try:
        return [] if run is None else list(run_lines(run, look, cards_in(gpu_lines())))
    except IntegrityError as err:
        return [("model", str(err))]


if __name__ == "__main__":
    answer(work)
