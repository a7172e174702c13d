"""Tasks whose offline difficulty is nearest a target that follows the rewards (AdaRFT, arXiv:2504.05520)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import count, positive, share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.drawing import sample
from rft_data.tasks.selectors.ranking import by_level


class AdaptiveTarget(TaskSelector):
    """T <- clip(T + step * tanh(sensitivity * (R - target_pass_rate)), easiest, hardest).

    R is the mean reward of `groups_per_update` groups in a row; T and the step are in shares of the range
    of difficulties. The n tasks nearest T are chosen; equally near tasks are drawn at random, so that a
    taskset with few levels of difficulty is not always played in the same order.
    """

    name: ClassVar[str] = "adaptive_target"

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        target_pass_rate: float = 0.5,
        step: float = 0.05,
        sensitivity: float = 2.0,
        start: float = 0.0,
        groups_per_update: int = 16,
    ) -> None:
        """`start`: where in the range of difficulties T begins, 0 at the easiest.

        Raises: ValueError for a bad argument; RecipeError when a task has no difficulty, or there is none.
        """
        self._pass_rate = share("target_pass_rate", target_pass_rate, zero=False, one=False)
        self._step = share("step", step, zero=False)
        self._sensitivity = positive("sensitivity", sensitivity)
        self._at = share("start", start)
        self._every = count("groups_per_update", groups_per_update)
        self._rewards, self._groups = 0.0, 0
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        self._ladder, self._levels = by_level(self._roster.tasks, self.name)

    @property
    def _target(self) -> float:
        """T in the unit of the difficulties."""
        lowest, highest = self._levels[0].item(), self._levels[-1].item()
        return float(lowest + self._at * (highest - lowest))

    def _choose(self, n: int) -> list[int]:
        near = self._nearby(n)
        distance = np.abs(self._levels[near] - self._target)
        edge = np.partition(distance, n - 1)[n - 1]
        chosen: list[int] = self._ladder[near[distance < edge]].tolist()
        ties = [
            self._ladder[slice(*self._rungs(level))]
            for level in np.unique(self._levels[near[distance == edge]])
        ]
        return chosen + sample(np.concatenate(ties), n - len(chosen), self._in_play.__getitem__, self._rng)

    def _nearby(self, n: int) -> np.ndarray:
        """Indices into `_ladder` of tasks in play around T; they include the n nearest."""
        middle, reach, size = int(np.searchsorted(self._levels, self._target)), n, len(self._ladder)
        while True:
            low, high = max(0, middle - reach), min(size, middle + reach)
            near = low + np.flatnonzero(self._in_play[self._ladder[low:high]])
            below = int(np.searchsorted(near, middle))
            if (below >= n or low == 0) and (len(near) - below >= n or high == size):
                return near
            reach *= 4

    def _rungs(self, level: float) -> tuple[int, int]:
        """First index of a difficulty in `_ladder`, and the index after its last."""
        low, high = (int(np.searchsorted(self._levels, level, side)) for side in ("left", "right"))
        return low, high

    def _learn(self, place: int, passes: float, n: int) -> None:
        self._rewards += passes / n
        self._groups += 1
        if self._groups == self._every:
            away = self._rewards / self._groups - self._pass_rate
            self._at = min(max(self._at + self._step * math.tanh(self._sensitivity * away), 0.0), 1.0)
            self._rewards, self._groups = 0.0, 0

    def _own_state(self) -> dict[str, object]:
        return {"at": self._at, "rewards": self._rewards, "groups": self._groups}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._at, self._rewards = float(state["at"]), float(state["rewards"])
        self._groups = int(state["groups"])

    def metrics(self) -> dict[str, float]:
        """The target difficulty, and shares visited and retired."""
        return {**super().metrics(), "target_difficulty": self._target}
