"""Every task once per epoch, in a fresh random order each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rft_data.errors import RecipeError
from rft_data.rows import GroupResult, Task, TaskKey


class Shuffle:
    """Uniform choice without replacement."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Raises: RecipeError when there is no task."""
        if not tasks:
            raise RecipeError("selector 'shuffle' has no task to choose from; look at the recipe's 'tasks'.")
        self._keys = sorted(task.key for task in tasks)
        self._seed = seed
        self._epoch = 0
        self._position = 0

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks; an epoch ends before a task repeats."""
        chosen: list[TaskKey] = []
        while len(chosen) < n:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._keys))
            part = order[self._position : self._position + n - len(chosen)]
            chosen += [self._keys[i] for i in part]
            self._position += len(part)
            if self._position == len(self._keys):
                self._epoch, self._position = self._epoch + 1, 0
        return chosen

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Nothing is learned."""

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position; the order follows from the seed."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._epoch, self._position = int(state["epoch"]), int(state["position"])

    def metrics(self) -> dict[str, float]:
        """Epochs passed, with their fraction."""
        return {"epoch": self._epoch + self._position / len(self._keys)}
