"""Easy, medium and hard pools by each task's last result; each call draws fixed shares from them.

Like prime-rl's difficulty pools, and the manual pools of Kimi k1.5 (arXiv:2501.12599) and Skywork-OR1
(arXiv:2505.22312): no uncertainty, no forgetting, and no estimate for tasks that were not played.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.columns import Kinds

_MEDIUM, _EASY, _HARD = 0, 1, 2
_NAMES = ("medium", "easy", "hard")
_SCORED = 16_384


class Pools(TaskSelector):
    """A call takes its shares of easy and hard tasks, and the rest from the medium ones, all uniformly.

    A task is easy when the mean reward of its last group was at least `easy_above`, hard when at most
    `hard_below`, else medium; a task that was not played is medium. If a pool has too few tasks, the rest
    comes from the medium pool, then from any.
    """

    name: ClassVar[str] = "pools"
    columns: ClassVar[Kinds] = {"pool": (np.int8, _MEDIUM)}

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        easy_above: float = 0.8,
        hard_below: float = 0.2,
        easy_share: float = 0.1,
        hard_share: float = 0.2,
    ) -> None:
        """Raises: ValueError for a bad argument; RecipeError when there is no task."""
        self._easy = share("easy_above", easy_above)
        self._hard = share("hard_below", hard_below)
        if self._hard >= self._easy:
            raise ValueError(f"'hard_below' {hard_below} is not below 'easy_above' {easy_above}")
        shares = share("easy_share", easy_share), share("hard_share", hard_share)
        if sum(shares) > 1:
            raise ValueError(f"'easy_share' and 'hard_share' sum to {sum(shares):g}; give at most 1")
        self._shares = (1.0 - sum(shares), *shares)
        super().__init__(tasks, seed=seed)

    def _choose(self, n: int) -> list[int]:
        wanted = self._rng.multinomial(n, self._shares).tolist()
        chosen = [place for pool in (_EASY, _HARD) for place in self._draw(pool, wanted[pool])]
        chosen += self._draw(_MEDIUM, n - len(chosen))
        if len(chosen) < n:
            taken = np.zeros(len(self._roster), bool)
            taken[chosen] = True
            left = np.flatnonzero(self._in_play & ~taken)
            chosen += self._rng.permutation(left)[: n - len(chosen)].tolist()
        return chosen

    def _draw(self, pool: int, n: int) -> list[int]:
        if not n:
            return []
        column = self._columns["pool"]
        places = self._candidates(_SCORED, least=n)
        found = places[column[places] == pool]
        if len(found) < n:  # a small pool among many tasks: search all of them
            found = np.flatnonzero((column == pool) & self._in_play)
        drawn: list[int] = self._rng.permutation(found)[:n].tolist()
        return drawn

    def _learn(self, place: int, passes: float, n: int) -> None:
        mean = passes / n
        self._columns["pool"][place] = (
            _EASY if mean >= self._easy else _HARD if mean <= self._hard else _MEDIUM
        )

    def metrics(self) -> dict[str, float]:
        """Share of the tasks in each pool, shares visited and retired."""
        counts = np.bincount(self._columns["pool"], minlength=3) / len(self._roster)
        return {**super().metrics(), **{f"pool/{n}": float(c) for n, c in zip(_NAMES, counts, strict=True)}}
