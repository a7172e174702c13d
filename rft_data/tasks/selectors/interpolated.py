"""Pass rates between those of a weak and a strong reference model (BOTS, arXiv:2510.26374)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.core.rows import Task
from rft_data.tasks.selectors.arguments import checked_choice, count, number, positive, share
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.columns import Kinds
from rft_data.tasks.selectors.drawing import best
from rft_data.tasks.selectors.ranking import feature

_DRAWN = 8192
_LEAST = 1e-2
_LEAST_GAP = 1 / 1024
"""Of the mean pass rates of the references, for tasks that tell where the policy is between them."""
_KEEP = 0.9
"""Weight of the old position between the references at an update."""


class Interpolated(TaskSelector):
    """Beta(a, b) per task. Each update, over the groups I since the last update, computes for every task

    a <- (1 - l) a + l + (1 - r) s + r m q,  b <- (1 - l) b + l + (1 - r) f + r m (1 - q)

    with weak and strong pass rates w and g, q = clip(w + c (g - w), 0, 1), and on I: q the rate p seen, s =
    m p, f = m (1 - p); elsewhere s = f = 0. c <- 0.9 c + 0.1 (mean p - mean w) / (mean g - mean w) over I
    (at first: that ratio). l is `forgetting`, r `blend`, m `pseudo_count`. Tasks outside I are updated
    only when they are used; for them the mean over the updates is clipped, not each update. Tasks are drawn
    with P ~ exp(-|target - rate| / temperature), without replacement; the rate is a draw from Beta(a, b) or
    its mean. Of more than 8,192 tasks in play, a uniform subset is used.
    """

    name: ClassVar[str] = "interpolated"
    columns: ClassVar[Kinds] = {"passes": (np.float64, 0.0), "fails": (np.float64, 0.0), "at": (np.int32, 0)}

    def __init__(  # noqa: PLR0913 - the arguments are the keys that recipes give
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        weak: str = "weak_pass_rate",
        strong: str = "strong_pass_rate",
        target_pass_rate: float = 0.5,
        temperature: float = 0.05,
        forgetting: float = 0.2,
        blend: float = 0.2,
        pseudo_count: float = 16.0,
        groups_per_update: int = 16,
        choice: str = "thompson",
    ) -> None:
        """`weak`, `strong`: fields of the metadata; `choice`: thompson or mean; temperature 0: the nearest.

        Raises: ValueError for a bad argument; RecipeError when a task lacks a field, or there is no task.
        """
        self._fields = str(weak), str(strong)
        self._target = share("target_pass_rate", target_pass_rate)
        if number("temperature", temperature) < 0:
            raise ValueError(f"'temperature' is {temperature!r}; give 0 or more")
        self._temperature = float(temperature)
        self._left = 1.0 - share("forgetting", forgetting, one=False)
        self._blend = share("blend", blend)
        self._strength = positive("pseudo_count", pseudo_count)
        self._every = count("groups_per_update", groups_per_update)
        self._thompson = checked_choice("choice", choice, ("thompson", "mean")) == "thompson"
        self._position: float | None = None
        self._updates = 0
        self._weight = 0.0
        self._weighted = 0.0
        self._waiting: list[tuple[int, float]] = []
        super().__init__(tasks, seed=seed)

    def _derive(self) -> None:
        weak, strong = (feature(self._roster.tasks, field, self.name) for field in self._fields)
        self._weak, self._gap = weak, strong - weak

    def _choose(self, n: int) -> list[int]:
        places = self._candidates(_DRAWN, least=n)
        passes, fails = self._shapes(places)
        rates = self._rng.beta(passes, fails) if self._thompson else passes / (passes + fails)
        scores = -np.abs(rates - self._target)
        if self._temperature:
            scores = scores / self._temperature + self._rng.gumbel(size=len(places))
        return best(places, scores, n)

    def _shapes(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        middle = self._weighted / self._weight if self._weight else 0.0
        rate = np.clip(self._weak[places] + middle * self._gap[places], 0.0, 1.0)
        left = self._left ** (self._updates - self._columns["at"][places])
        strength = self._blend * self._strength * self._weight
        passes = 1.0 + strength * rate + left * self._columns["passes"][places]
        fails = 1.0 + strength * (1.0 - rate) + left * self._columns["fails"][places]
        return np.maximum(passes, _LEAST), np.maximum(fails, _LEAST)

    def _between(self, place: int, position: float) -> float:
        rate: float = self._weak.item(place) + position * self._gap.item(place)
        return min(max(rate, 0.0), 1.0)

    def _predict(self, place: int) -> float:
        rate = self._between(place, self._weighted / self._weight if self._weight else 0.0)
        left = self._left ** (self._updates - self._columns["at"].item(place))
        strength = self._blend * self._strength * self._weight
        passes = max(1.0 + strength * rate + left * self._columns["passes"].item(place), _LEAST)
        fails = max(1.0 + strength * (1.0 - rate) + left * self._columns["fails"].item(place), _LEAST)
        return float(passes / (passes + fails))

    def _learn(self, place: int, passes: float, n: int) -> None:
        self._waiting.append((place, passes / n))
        if len(self._waiting) == self._every:
            self._update()

    def _update(self) -> None:
        position = self._place_policy()
        self._updates += 1
        self._weight = self._left * self._weight + 1.0
        self._weighted = self._left * self._weighted + position
        for place, rate in self._waiting:
            left = self._left ** (self._updates - self._columns["at"].item(place))
            more = self._strength * (rate - self._blend * self._between(place, position))
            both = self._strength * (1.0 - self._blend)
            for name, part in (("passes", more), ("fails", both - more)):
                column = self._columns[name]
                column[place] = left * column.item(place) + part
            self._columns["at"][place] = self._updates
        self._waiting = []

    def _place_policy(self) -> float:
        """The policy's position between the references: 0 is the weak one, 1 the strong; may be outside."""
        places = [place for place, _ in self._waiting]
        gap = float(self._gap[places].mean())
        seen = sum(rate for _, rate in self._waiting) / len(places) - float(self._weak[places].mean())
        if abs(gap) > _LEAST_GAP:  # else these tasks do not tell the position
            found = seen / gap
            old = self._position
            self._position = found if old is None else _KEEP * old + (1.0 - _KEEP) * found
        return self._position or 0.0

    def _own_state(self) -> dict[str, object]:
        return {
            "position": self._position,
            "updates": [self._updates, self._weight, self._weighted],
            "waiting": self._roster.pack(np.array([place for place, _ in self._waiting], np.int64)),
            "waiting_rates": [rate for _, rate in self._waiting],
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]
        self._updates, self._weight, self._weighted = state["updates"]
        places = self._roster.unpack(state["waiting"]).tolist()
        rates = zip(places, state["waiting_rates"], strict=True)
        self._waiting = [(place, float(rate)) for place, rate in rates if place >= 0]

    def metrics(self) -> dict[str, float]:
        """The policy's position between the references, shares visited and retired, calibration."""
        return {**super().metrics(), "position": self._position or 0.0}
