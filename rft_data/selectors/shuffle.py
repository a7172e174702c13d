"""Every task once per epoch, in a fresh random order each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.rows import Task
from rft_data.selectors.base import TaskSelector
from rft_data.selectors.walk import Walk


class Shuffle(TaskSelector):
    """Uniform choice without replacement; tasks added during an epoch are its last."""

    name: ClassVar[str] = "shuffle"
    learns: ClassVar[bool] = False

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Raises: RecipeError when there is no task."""
        super().__init__(tasks, seed=seed)
        self._walk = Walk(self._order, self._roster)

    def _order(self, epoch: int, size: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(size)

    def _choose(self, n: int) -> list[int]:
        return self._walk.next(n, self._in_play)

    def _own_state(self) -> dict[str, Any]:
        return self._walk.state_dict()

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._walk.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Epochs passed, and the share of tasks retired."""
        return {**super().metrics(), **self._walk.metrics()}
