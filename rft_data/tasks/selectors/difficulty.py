"""Tasks whose pass rate is near a target, by a Beta posterior per task with its category as prior.

A group teaches most when some rollouts pass and some fail; a group with equal rewards has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import checked_choice, share
from rft_data.tasks.selectors.drawing import best
from rft_data.tasks.selectors.posterior_selector import PosteriorSelector

_DRAWN = 16_384
_SCORED = 32_768


class Difficulty(PosteriorSelector):
    """The n tasks nearest the target, by a draw from each posterior (Thompson) or its mean (greedy).

    The category prior makes first visits useful: tasks usually outnumber visits. Up to 16,384 tasks in
    play (greedy: 32,768) all are compared; of more, a new uniform subset of that size in each call, so
    that the cost of a call does not grow with the number of tasks.
    """

    name: ClassVar[str] = "difficulty"

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        target_pass_rate: float = 0.5,
        decay: float = 0.8,
        prior_weight: float = 4.0,
        choice: str = "thompson",
    ) -> None:
        """`decay` multiplies a task's counts at each new group of it; `choice`: thompson or greedy.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        self._target = share("target_pass_rate", target_pass_rate, zero=False, one=False)
        self._greedy = checked_choice("choice", choice, ("thompson", "greedy")) == "greedy"
        super().__init__(tasks, seed=seed, decay=decay, prior_weight=prior_weight)

    def _choose(self, n: int) -> list[int]:
        places = self._candidates(_SCORED if self._greedy else _DRAWN, least=n)
        passes, fails = self._posterior.shapes(places)
        if self._greedy:
            rates = passes / (passes + fails)
            tie = self._rng.random(len(places)) * 1e-9  # unvisited tasks of a category are all alike
            return best(places, tie - np.abs(rates - self._target), n)
        return best(places, -np.abs(self._rng.beta(passes, fails) - self._target), n)
