"""A task selector: untried tasks first, then those whose last pass rate was nearest to a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rft_data import Task, TaskSelector


class Nearest(TaskSelector):
    """The base class counts visits and remembers each task's last mean reward; it also saves them."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, target: float = 0.5) -> None:
        """target: a pass rate in [0, 1]."""
        if not 0 <= target <= 1:
            raise ValueError(f"target is {target}; wanted a number in [0, 1]")
        super().__init__(tasks, seed=seed)
        self._target = target

    def _choose(self, n: int) -> list[int]:
        """n places of tasks in play; ties are broken at random, by the run's seed."""
        places = np.flatnonzero(self._in_play)
        distance = np.abs(self._columns["last_mean"][places] - self._target)
        distance[self._columns["visits"][places] == 0] = -1.0
        ties = self._rng.random(len(places))
        chosen: list[int] = places[np.lexsort((ties, distance))[:n]].tolist()
        return chosen
