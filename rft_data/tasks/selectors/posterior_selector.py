"""Base of selectors with a Beta posterior per task and its category as prior; each defines how it chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import positive, share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.categories import by_difficulty
from rft_data.tasks.selectors.columns import Kinds
from rft_data.tasks.selectors.posterior import COUNTS, CategoryPosterior


class PosteriorSelector(TaskSelector):
    """Predicts a task's pass rate by its posterior mean; derived classes implement `_choose`."""

    columns: ClassVar[Kinds] = COUNTS

    def __init__(self, tasks: Sequence[Task], *, seed: int, decay: float, prior_weight: float) -> None:
        """`decay` multiplies a task's counts at each new group of it.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        self._posterior = CategoryPosterior(
            decay=share("decay", decay, zero=False), prior_weight=positive("prior_weight", prior_weight)
        )
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        self._posterior.fit(by_difficulty(self._roster), self._columns)

    def _predict(self, place: int) -> float:
        return self._posterior.mean(place)

    def _shape(self, place: int) -> tuple[float, float]:
        alpha, beta = self._posterior.shapes(np.array([place]))
        return alpha.item(), beta.item()

    def _learn(self, place: int, passes: float, n: int) -> None:
        self._posterior.learn(place, passes, n)

    def _own_state(self) -> dict[str, object]:
        return self._posterior.state_dict()

    def _load_own_state(self, state: Mapping[str, object]) -> None:
        self._posterior.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Estimated pass rate of each category, shares visited and retired, calibration."""
        return {**super().metrics(), **self._posterior.metrics()}
