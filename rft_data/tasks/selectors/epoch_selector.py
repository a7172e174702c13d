"""Base of selectors that take every task once per epoch; each defines its order of an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.walk import Walk


class EpochSelector(TaskSelector):
    """Goes through the tasks in the order that `_order` gives; learns nothing."""

    learns: ClassVar[bool] = False

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Raises: RecipeError when there is no task."""
        super().__init__(tasks, seed=seed)
        self._walk = Walk(self._order, self._roster)

    def _order(self, epoch: int, size: int) -> np.ndarray:
        """The places of the first `size` tasks in the order of an epoch, from the arguments alone."""
        raise NotImplementedError

    def _choose(self, n: int) -> list[int]:
        return self._walk.next(n, self._in_play)

    def _own_state(self) -> dict[str, object]:
        return self._walk.state_dict()

    def _load_own_state(self, state: Mapping[str, object]) -> None:
        self._walk.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Epochs passed, and the share of tasks retired."""
        return {**super().metrics(), **self._walk.metrics()}
