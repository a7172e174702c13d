"""Beta posterior of every task's pass rate, with the pass rate of its category as prior.

Task i of category c: Beta(k*m_c + s_i, k*(1 - m_c) + f_i), with s and f its own decayed passes and fails,
m_c the decayed pass rate of the category, k the weight of that prior in rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rft_data.tasks.selectors.categories import Categories
from rft_data.tasks.selectors.columns import Columns, Kinds

COUNTS: Kinds = {"passes": (np.float64, 0.0), "fails": (np.float64, 0.0)}

_SLOWER = 1 / 16
"""A category gets many groups per step, so it forgets more slowly than a task: decay to this power."""
_LEAST = 1e-3
"""A category's pass rate stays this far from 0 and 1, so that no Beta parameter reaches 0."""


class CategoryPosterior:
    """Counts per task are in the selector's columns (`COUNTS`), counts per category here."""

    def __init__(self, *, decay: float, prior_weight: float) -> None:
        """`decay`: factor of a task's counts when a new group of it arrives."""
        self._decay = decay
        self._prior_weight = prior_weight
        self._category_decay = decay**_SLOWER
        self._counts: list[list[float]] = []
        """Decayed (passes, fails) per category, from (1, 1): a pass rate of 0.5 before the first group."""

    def fit(self, categories: Categories, columns: Columns) -> None:
        """Use these categories; counts of known categories are kept."""
        self._categories = categories
        self._columns = columns
        self._counts += [[1.0, 1.0] for _ in range(len(categories) - len(self._counts))]

    def rates(self) -> np.ndarray:
        """Pass rate of each category."""
        counts = np.array(self._counts)
        found: np.ndarray = np.clip(counts[:, 0] / counts.sum(axis=1), _LEAST, 1.0 - _LEAST)
        return found

    def shapes(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both parameters of the Beta posterior of each place."""
        prior = self._prior_weight * self.rates()[self._categories.codes[places]]
        passes, fails = self._columns["passes"][places], self._columns["fails"][places]
        return prior + passes, self._prior_weight - prior + fails

    def mean(self, place: int) -> float:
        """Posterior mean of one task's pass rate."""
        passed, failed = self._counts[self._categories.codes.item(place)]
        rate = min(max(passed / (passed + failed), _LEAST), 1.0 - _LEAST)
        passes = self._columns["passes"].item(place) + self._prior_weight * rate
        fails = self._columns["fails"].item(place) + self._prior_weight * (1.0 - rate)
        return float(passes / (passes + fails))

    def learn(self, place: int, passes: float, n: int) -> None:
        """Learn from a group of n rollouts, of which `passes` passed (partial credit counts in part)."""
        for name, more in (("passes", passes), ("fails", n - passes)):
            column = self._columns[name]
            column[place] = self._decay * column.item(place) + more
        counts = self._counts[self._categories.codes.item(place)]
        counts[0] = self._category_decay * counts[0] + passes
        counts[1] = self._category_decay * counts[1] + n - passes

    def state_dict(self) -> dict[str, object]:
        """Counts by name of category."""
        return {"categories": dict(zip(self._categories.names, map(list, self._counts), strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        saved = state["categories"]
        self._counts = [list(saved.get(name, (1.0, 1.0))) for name in self._categories.names]

    def metrics(self) -> dict[str, float]:
        """Pass rate of each category."""
        named = zip(self._categories.names, self.rates().tolist(), strict=True)
        return {f"pass_rate/{name}": rate for name, rate in named}
