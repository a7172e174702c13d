"""Tasks drawn in proportion to the expected variance of their rewards: p(1 - p)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.drawing import best
from rft_data.tasks.selectors.posterior_selector import PosteriorSelector

_SCORED = 16_384


class Learnability(PosteriorSelector):
    """Draws without replacement with weights E[p(1 - p)] (LILO, arXiv:2502.12272) under a Beta posterior.

    For Beta(a, b) the expectation is a b / ((a + b)(a + b + 1)), the variance of a reward that the
    policy's randomness explains. The n tasks with the largest log(u) / weight, u uniform, are such a
    draw (Efraimidis and Spirakis 2006). Of more than 16,384 tasks in play, a uniform subset is used.
    """

    name: ClassVar[str] = "learnability"

    def __init__(
        self, tasks: Sequence[Task], *, seed: int, decay: float = 0.8, prior_weight: float = 4.0
    ) -> None:
        """`decay` multiplies a task's counts at each new group of it.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        super().__init__(tasks, seed=seed, decay=decay, prior_weight=prior_weight)

    def _choose(self, n: int) -> list[int]:
        places = self._candidates(_SCORED, least=n)
        passes, fails = self._posterior.shapes(places)
        weights = passes * fails / ((passes + fails) * (passes + fails + 1.0))
        uniform = 1.0 - self._rng.random(len(places))  # in (0, 1]
        return best(places, np.log(uniform) / weights, n)
