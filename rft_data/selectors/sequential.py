"""Every task once per epoch, in the order the tasks were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.rows import Task
from rft_data.selectors.base import TaskSelector
from rft_data.selectors.walk import Walk


class Sequential(TaskSelector):
    """The order of the source; added tasks come after those that were there."""

    name: ClassVar[str] = "sequential"
    learns: ClassVar[bool] = False

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """`seed` changes nothing.

        Raises: RecipeError when there is no task.
        """
        super().__init__(tasks, seed=seed)
        self._walk = Walk(self._order, self._roster)

    def _order(self, epoch: int, size: int) -> np.ndarray:
        return np.argsort(self._roster.given[:size], kind="stable")

    def _choose(self, n: int) -> list[int]:
        return self._walk.next(n, self._in_play)

    def _own_state(self) -> dict[str, Any]:
        return self._walk.state_dict()

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._walk.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Epochs passed, and the share of tasks retired."""
        return {**super().metrics(), **self._walk.metrics()}
