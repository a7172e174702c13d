"""From the easiest tasks to all of them, by their offline difficulty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import count, share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.drawing import sample
from rft_data.tasks.selectors.ranking import by_level


class EasyToHard(TaskSelector):
    """Uniform draws from the easiest share of the tasks, a share that grows linearly to all of them.

    The linear pacing function of arXiv:1904.03626: after t groups the easiest
    start + (1 - start) * min(1, t / pace) of the tasks may be drawn.
    """

    name: ClassVar[str] = "easy_to_hard"
    learns: ClassVar[bool] = False

    def __init__(self, tasks: Sequence[Task], *, seed: int, pace: int = 1000, start: float = 0.1) -> None:
        """`pace`: groups drawn until every task may be drawn; `start`: share of the tasks at first.

        Raises: ValueError for a bad argument; RecipeError when a task has no difficulty, or there is none.
        """
        self._pace = count("pace", pace)
        self._start = share("start", start, zero=False)
        self._drawn = 0
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        self._ladder, _ = by_level(self._roster.tasks, self.name)

    @property
    def _open(self) -> float:
        return self._start + (1.0 - self._start) * min(1.0, self._drawn / self._pace)

    def _choose(self, n: int) -> list[int]:
        reach = max(n, math.ceil(self._open * len(self._ladder)))
        chosen = sample(self._ladder[:reach], n, self._in_play.__getitem__, self._rng)
        while len(chosen) < n:  # too many of the easy tasks are retired
            reach = min(2 * reach, len(self._ladder))
            chosen = sample(self._ladder[:reach], n, self._in_play.__getitem__, self._rng)
        self._drawn += n
        return chosen

    def _own_state(self) -> dict[str, object]:
        return {"drawn": self._drawn}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._drawn = int(state["drawn"])

    def metrics(self) -> dict[str, float]:
        """Share of the tasks that may be drawn, and share retired."""
        return {**super().metrics(), "open": self._open}
