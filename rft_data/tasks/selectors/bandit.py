"""Categories of tasks as arms of a bandit (SEC, arXiv:2505.14970)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import positive, share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.categories import by_difficulty


class Bandit(TaskSelector):
    """Q_c <- Q_c + rate * (mean |advantage| - Q_c), a TD(0) step per group; category c with p ~ exp(Q_c / T).

    Of n rewards with mean p and standard deviation s the mean |advantage| is mean |r - p| / s; for rewards
    of 0 and 1 that is 2 sqrt(p(1 - p)), which is also used for partial credit. A group with equal rewards
    has 0. Within a category tasks are drawn uniformly.
    """

    name: ClassVar[str] = "bandit"

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        learning_rate: float = 0.1,
        temperature: float = 0.25,
        start: float = 0.5,
    ) -> None:
        """`start`: Q of a category without any group yet.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        self._rate = share("learning_rate", learning_rate, zero=False)
        self._temperature = positive("temperature", temperature)
        self._start = share("start", start)
        self._values: list[float] = []
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        self._categories = by_difficulty(self._roster)
        self._values += [self._start] * (len(self._categories) - len(self._values))

    def _choose(self, n: int) -> list[int]:
        scaled = np.array(self._values) / self._temperature
        weights = np.exp(scaled - scaled.max())
        chosen: list[int] = []
        while len(chosen) < n:
            taken = set(chosen)
            wanted = self._rng.multinomial(n - len(chosen), weights / weights.sum())
            for code in np.flatnonzero(wanted).tolist():
                found = self._draw(code, int(wanted[code]), taken)
                if len(found) < wanted[code]:
                    weights[code] = 0.0  # exhausted: its share goes to the others
                chosen += found
            if not weights.any():  # the remaining weights round to 0
                weights = np.ones(len(weights))
        return chosen

    def _draw(self, code: int, n: int, taken: set[int]) -> list[int]:
        """n tasks of a category that are in play and not taken; fewer if there are fewer."""
        found = self._categories.sample(
            code, n + self._overlap(code, taken), self._in_play.__getitem__, self._rng
        )
        return [place for place in found if place not in taken][:n]

    def _overlap(self, code: int, taken: set[int]) -> int:
        return sum(self._categories.codes.item(place) == code for place in taken)

    def _learn(self, place: int, passes: float, n: int) -> None:
        code, mean = self._categories.codes.item(place), passes / n
        self._values[code] += self._rate * (2.0 * math.sqrt(mean * (1.0 - mean)) - self._values[code])

    def _own_state(self) -> dict[str, object]:
        return {"values": dict(zip(self._categories.names, self._values, strict=True))}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._values = [float(state["values"].get(name, self._start)) for name in self._categories.names]

    def metrics(self) -> dict[str, float]:
        """Q of each category, and shares visited and retired."""
        named = zip(self._categories.names, self._values, strict=True)
        return {**super().metrics(), **{f"value/{name}": value for name, value in named}}
