"""Tasks near a target pass rate by Thompson sampling, each task on its own (MoPPS, arXiv:2507.04632)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.columns import Kinds
from rft_data.tasks.selectors.drawing import best

_DRAWN = 16_384
_PRIOR = 1.0


class Mopps(TaskSelector):
    """Beta-Bernoulli bandit: a' = d*a + (1 - d) + s, b' = d*b + (1 - d) + k - s after s of k passed.

    Every task starts at Beta(1, 1) and learns from its own groups only. The n tasks whose drawn rates
    are nearest the target are chosen. Of more than 16,384 tasks in play, a uniform subset of that
    size is used.
    """

    name: ClassVar[str] = "mopps"
    columns: ClassVar[Kinds] = {"a": (np.float64, _PRIOR), "b": (np.float64, _PRIOR)}

    def __init__(
        self, tasks: Sequence[Task], *, seed: int, target_pass_rate: float = 0.5, decay: float = 0.5
    ) -> None:
        """`decay`: the d of the update, the weight of a task's past at each new group of it.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        self._target = share("target_pass_rate", target_pass_rate, zero=False, one=False)
        self._decay = share("decay", decay)
        super().__init__(tasks, seed=seed)

    def _choose(self, n: int) -> list[int]:
        places = self._candidates(_DRAWN, least=n)
        drawn = self._rng.beta(self._columns["a"][places], self._columns["b"][places])
        return best(places, -np.abs(drawn - self._target), n)

    def _predict(self, place: int) -> float:
        a, b = self._columns["a"].item(place), self._columns["b"].item(place)
        return float(a / (a + b))

    def _shape(self, place: int) -> tuple[float, float]:
        return self._columns["a"].item(place), self._columns["b"].item(place)

    def _learn(self, place: int, passes: float, n: int) -> None:
        for name, more in (("a", passes), ("b", n - passes)):
            column = self._columns[name]
            column[place] = self._decay * column.item(place) + (1.0 - self._decay) * _PRIOR + more
