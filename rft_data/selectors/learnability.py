"""Tasks in proportion to how much a group of theirs is expected to vary: p(1 - p)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.rows import Task
from rft_data.selectors.arguments import positive, share
from rft_data.selectors.base import TaskSelector
from rft_data.selectors.categories import by_difficulty
from rft_data.selectors.columns import Kinds
from rft_data.selectors.drawing import best
from rft_data.selectors.posterior import COUNTS, CategoryPosterior

_SCORED = 16_384


class Learnability(TaskSelector):
    """Draws without replacement with weights E[p(1 - p)] (LILO, arXiv:2502.12272) under a Beta posterior.

    For Beta(a, b) the expectation is a b / ((a + b)(a + b + 1)), the variance of a reward that the
    policy's randomness explains. The n tasks with the largest log(u) / weight, u uniform, are such a
    draw (Efraimidis and Spirakis 2006). Beyond 16,384 tasks in play it is taken from a uniform subset.
    """

    name: ClassVar[str] = "learnability"
    columns: ClassVar[Kinds] = COUNTS

    def __init__(
        self, tasks: Sequence[Task], *, seed: int, decay: float = 0.8, prior_weight: float = 4.0
    ) -> None:
        """`decay` multiplies a task's counts at each new group of it.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        self._posterior = CategoryPosterior(
            decay=share("decay", decay, zero=False), prior_weight=positive("prior_weight", prior_weight)
        )
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        self._posterior.fit(by_difficulty(self._roster), self._columns)

    def _choose(self, n: int) -> list[int]:
        places = self._candidates(_SCORED, least=n)
        passes, fails = self._posterior.shapes(places)
        weights = passes * fails / ((passes + fails) * (passes + fails + 1.0))
        uniform = 1.0 - self._rng.random(len(places))  # in (0, 1]
        return best(places, np.log(uniform) / weights, n)

    def _predict(self, place: int) -> float:
        return self._posterior.mean(place)

    def _learn(self, place: int, passes: float, n: int) -> None:
        self._posterior.learn(place, passes, n)

    def _own_state(self) -> dict[str, Any]:
        return self._posterior.state_dict()

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._posterior.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Estimated pass rate of each category, shares visited and retired, calibration."""
        return {**super().metrics(), **self._posterior.metrics()}
