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
    """What training would come to. Args: models: folders that may be looked at, as recipes name them."""
    from rft_data.core.errors import IntegrityError
    from rft_data.recipe.kinds import with_reinforcement
    from rft_data.run.outlook.lines import training_lines
    from rft_data.run.outlook.model_size import ModelSize, folder_size

    def look(folder: Path) -> ModelSize | None:
        return folder_size(folder) if str(folder) in models else None

    training = with_reinforcement(recipe)
    try:
        return [] if training is None else list(training_lines(training, look))
    except IntegrityError as err:
        return [("model", str(err))]


if __name__ == "__main__":
    answer(work)
