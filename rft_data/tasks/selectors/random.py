"""Uniform choice without memory: tasks of one call differ, those of two calls may be the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.drawing import sample


class Random(TaskSelector):
    """Any task in play, each with the same probability."""

    name: ClassVar[str] = "random"
    learns: ClassVar[bool] = False

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Raises: RecipeError when there is no task."""
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        self._places = np.arange(len(self._roster), dtype=np.int32)

    def _choose(self, n: int) -> list[int]:
        return sample(self._places, n, self._in_play.__getitem__, self._rng)
