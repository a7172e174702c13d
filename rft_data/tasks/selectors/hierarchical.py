"""The tasks expected to teach most, by their own results, those of their category, and the policy's.

Made for runs with more tasks than visits, where statistics per task alone have too little data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import count, positive, share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.categories import by_difficulty, by_embedding
from rft_data.tasks.selectors.columns import Kinds
from rft_data.tasks.selectors.drawing import best, sample
from rft_data.tasks.selectors.rasch import OFFSETS, RaschFilter

_SCORED = 4096
"""At most so many visited tasks are compared in one call."""
_THROWS = 8192


class Hierarchical(TaskSelector):
    """Expected learnability E[p(1 - p)] (arXiv:2502.12272) under `RaschFilter`'s model of pass rates.

    Up to the share `revisits` of a call goes to visited tasks expected to teach more than an unvisited
    task of the best category. The other places go to categories by Thompson sampling, one draw of the
    category levels for each place, and within a category first to unvisited tasks, then to the best of the
    visited. A selected task rests for the next `rest` places (a quarter of the tasks, if fewer), so that
    groups under way are not started again. Of more than 4,096 visited tasks a call compares a random part
    of that size.
    """

    name: ClassVar[str] = "hierarchical"
    columns: ClassVar[Kinds] = OFFSETS

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        drift: float = 0.0005,
        revisits: float = 0.5,
        rest: int = 64,
        embedding: str | None = None,
        clusters: int = 16,
    ) -> None:
        """`drift`: see `RaschFilter`; `embedding`: metadata field whose vectors make categories.

        Raises: ValueError for a bad argument; RecipeError when there is no task, or one has no vector.
        """
        self._filter = RaschFilter(drift=positive("drift", drift))
        self._revisits = share("revisits", revisits)
        self._rest = count("rest", rest)
        if embedding is not None and not isinstance(embedding, str):
            raise ValueError(f"'embedding' is {embedding!r}; give the name of a metadata field")
        self._embedding, self._clusters = embedding, count("clusters", clusters)
        self._rested: deque[int] = deque()
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        if self._embedding is None:
            self._categories = by_difficulty(self._roster)
        else:
            self._categories = by_embedding(self._roster, self._embedding, self._clusters, self._seed)
        self._filter.fit(self._categories, self._columns)
        self._resting = np.zeros(len(self._roster), bool)
        self._resting[list(self._rested)] = True

    def _choose(self, n: int) -> list[int]:
        visited = self._visited()
        values = self._filter.values(visited)
        mean, variance = self._filter.levels()
        bar = self._filter.fresh(mean, variance).max()
        worth = values > bar
        chosen = self._take(best(visited[worth], values[worth], int(self._revisits * n)))
        wanted = self._throw(mean, variance, n - len(chosen))
        for code in np.flatnonzero(wanted).tolist():
            chosen += self._from_category(code, int(wanted[code]), visited, values)
        chosen += self._take(self._any(n - len(chosen), set(chosen)))
        while len(self._rested) > min(self._rest, self.in_play // 4):
            self._resting[self._rested.popleft()] = False
        return chosen

    def _visited(self) -> np.ndarray:
        """Visited tasks that may be played now; a random part of them if there are more than `_SCORED`."""
        seen = np.array(self._seen, np.int32)
        if len(seen) > _SCORED:
            apart = np.arange(_SCORED) * (len(seen) // _SCORED)  # every k-th, from a random start
            seen = seen[(apart + self._rng.integers(len(seen))) % len(seen)]
        free: np.ndarray = seen[self._free(seen)]
        return free

    def _free(self, places: np.ndarray) -> np.ndarray:
        free: np.ndarray = self._in_play[places] & ~self._resting[places]
        return free

    def _untried(self, places: np.ndarray) -> np.ndarray:
        untried: np.ndarray = self._columns["visits"][places] == 0
        untried &= self._free(places)
        return untried

    def _throw(self, mean: np.ndarray, variance: np.ndarray, n: int) -> np.ndarray:
        """How many of n places each category gets."""
        throws = min(n, max(1, _THROWS // len(mean)))
        if not throws:
            return np.zeros(len(mean), np.int64)
        drawn = mean + np.sqrt(variance) * self._rng.standard_normal((throws, len(mean)))
        winners = np.argmax(self._filter.fresh(drawn), axis=1)
        return np.bincount(np.resize(winners, n), minlength=len(mean))

    def _from_category(self, code: int, n: int, visited: np.ndarray, values: np.ndarray) -> list[int]:
        """n tasks of a category, first untried ones, then the best visited; fewer if there are fewer."""
        fresh = self._take(self._categories.sample(code, n, self._untried, self._rng))
        if len(fresh) == n:
            return fresh
        mine = (self._categories.codes[visited] == code) & ~self._resting[visited]
        return fresh + self._take(best(visited[mine], values[mine], n - len(fresh)))

    def _any(self, n: int, chosen: set[int]) -> list[int]:
        """n tasks in play of any category, preferring tasks that do not rest."""
        if not n:
            return []
        places = np.arange(len(self._roster), dtype=np.int32)
        rested = sample(places, n, self._free, self._rng)
        if len(rested) == n:
            return rested
        taken = {*chosen, *rested}
        others = [place for place in np.flatnonzero(self._in_play).tolist() if place not in taken]
        shuffled: list[int] = self._rng.permutation(np.array(others, np.int64)).tolist()
        return rested + shuffled[: n - len(rested)]

    def _take(self, places: list[int]) -> list[int]:
        """Mark selected tasks as resting."""
        self._rested += places
        self._resting[places] = True
        return places

    def _predict(self, place: int) -> float:
        return self._filter.predict(place)

    def _learn(self, place: int, passes: float, n: int) -> None:
        self._filter.learn(place, passes, n)

    def _own_state(self) -> dict[str, object]:
        resting = self._roster.pack(np.array(list(self._rested), np.int64))
        return {**self._filter.state_dict(), "resting": resting}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._filter.load_state_dict(state)
        self._rested = deque(p for p in self._roster.unpack(state["resting"]).tolist() if p >= 0)
        self._resting[:] = False
        self._resting[list(self._rested)] = True

    def metrics(self) -> dict[str, float]:
        """Expected pass rate of each category, shares visited and retired, calibration."""
        return {**super().metrics(), **self._filter.metrics()}
