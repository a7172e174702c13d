"""Several tasksets in fixed proportions, each with a selector of its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rft_data.core.errors import RecipeError, StalledError
from rft_data.core.groups import GroupResult
from rft_data.core.rows import Task, TaskKey
from rft_data.tasks.selectors.arguments import component, count, positive
from rft_data.tasks.selectors.base import check_saved_selector
from rft_data.tasks.selectors.interfaces import NoTasksError, OpenSelector, SelectorMaker


class Mixture:
    """Taskset i gets the share w_i^(1/T) / sum_j w_j^(1/T) of the places, exactly over every epoch.

    An epoch is a number of places (default: the number of tasks in play when it begins). Its places are
    divided by largest remainder, and each place goes to the taskset furthest behind its share. The default
    weight of a taskset is its number of tasks in play, so T = 1 gives the proportions of one shuffle of all
    tasks; a larger T makes them more equal. If all tasks of a taskset are retired, the others get its
    places.
    """

    name: ClassVar[str] = "mixture"

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        make: SelectorMaker,
        weights: Mapping[str, float] | None = None,
        temperature: float = 1.0,
        epoch: int | None = None,
        inner: Mapping[str, object] | None = None,
    ) -> None:
        """`weights` by taskset, all of them or none; `inner`: `{use, args}` of each taskset's selector.

        Raises: ValueError for a bad argument; RecipeError when there is no task, or a taskset has no weight.
        """
        if weights is not None:
            if not isinstance(weights, Mapping) or not weights:
                raise ValueError(f"'weights' is {weights!r}; give a number for each taskset")
            weights = {name: positive(f"weights.{name}", value) for name, value in weights.items()}
        self._weights = weights
        self._power = 1.0 / positive("temperature", temperature)
        self._length = None if epoch is None else count("epoch", epoch)
        self._use, self._args = component("inner", inner or {"use": "shuffle"}, make)
        self._make = make
        self._seed = seed
        self._parts: dict[str, OpenSelector] = {}
        self._epochs = -1
        self._quota: dict[str, int] = {}
        self._drawn: dict[str, int] = {}
        self._done = self._total = 0
        """Places of this epoch drawn so far, and their total number."""
        if not tasks:
            raise NoTasksError("selector 'mixture' has no task to choose from; look at the recipe's 'tasks'.")
        self.add(tasks)
        unknown = set(self._weights or ()) - set(self._parts)
        if unknown:
            raise RecipeError(
                f"selector 'mixture': 'weights' names tasksets {sorted(unknown)} without any task; there are "
                f"{sorted(self._parts)}."
            )

    @property
    def in_play(self) -> int:
        """How many tasks may be selected."""
        return sum(part.in_play for part in self._parts.values())

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks, each from the taskset furthest behind its share.

        Raises: StalledError when every task is retired.
        """
        alive = [name for name, part in self._parts.items() if part.in_play]
        tasksets = [self._next_taskset(alive) for _ in range(n)]
        drawn = {
            name: iter(self._parts[name].select(tasksets.count(name))) for name in dict.fromkeys(tasksets)
        }
        return [next(drawn[name]) for name in tasksets]

    def _next_taskset(self, alive: Sequence[str]) -> str:
        """The taskset that is furthest behind its share of this epoch."""
        for _ in range(2):
            waiting = [name for name in alive if self._drawn.get(name, 0) < self._quota.get(name, 0)]
            if waiting:
                share = (self._done + 1) / self._total
                name = max(waiting, key=lambda name: self._quota[name] * share - self._drawn[name])
                self._drawn[name] += 1
                self._done += 1
                return name
            self._begin_epoch()
        raise StalledError("selector 'mixture': every task is retired; revive some or add new ones.")

    def _begin_epoch(self) -> None:
        sizes = {name: part.in_play for name, part in self._parts.items()}
        alive = [name for name, size in sizes.items() if size]
        weights = self._weights or sizes
        shares = np.array([float(weights[name]) for name in alive]) ** self._power
        quotas = largest_remainder(shares, self._length or sum(sizes.values())) if alive else []
        self._quota = dict(zip(alive, quotas, strict=True))
        self._drawn = dict.fromkeys(alive, 0)
        self._epochs += 1
        self._count()

    def _count(self) -> None:
        self._done, self._total = sum(self._drawn.values()), sum(self._quota.values())

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Each taskset's selector learns from its own groups."""
        for name, part in self._parts.items():
            mine = [result for result in results if result.task.taskset == name]
            if mine:
                part.observe(mine)

    def add(self, tasks: Sequence[Task]) -> None:
        """Bring new tasks into play; a new taskset joins in the next epoch.

        Raises: RecipeError when 'weights' are given and a new taskset has none.
        """
        by_name: dict[str, list[Task]] = {}
        for task in tasks:
            by_name.setdefault(task.taskset, []).append(task)
        for name, mine in by_name.items():
            if name in self._parts:
                self._parts[name].add(mine)
                continue
            if self._weights is not None and name not in self._weights:
                raise RecipeError(
                    f"selector 'mixture': taskset '{name}' has no weight; 'weights' has "
                    f"{sorted(self._weights)}."
                )
            seed = self._seed + zlib.crc32(name.encode())
            self._parts[name] = self._make(self._use, self._args, mine, seed)
        self._parts = dict(sorted(self._parts.items()))

    def retire(self, keys: Iterable[TaskKey]) -> None:
        """Take tasks out of play."""
        self._each("retire", keys)

    def revive(self, keys: Iterable[TaskKey]) -> None:
        """Bring retired tasks back."""
        self._each("revive", keys)

    def _each(self, method: str, keys: Iterable[TaskKey]) -> None:
        every = list(keys)
        for name, part in self._parts.items():
            getattr(part, method)([key for key in every if key.taskset == name])

    def state_dict(self) -> dict[str, object]:
        """The position in the epoch, and the state of every taskset's selector."""
        return {
            "selector": self.name,
            "epochs": self._epochs,
            "quota": dict(self._quota),
            "drawn": dict(self._drawn),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken; a missing taskset's places go to the others.

        Raises: ResumeError if the state belongs to another selector.
        """
        check_saved_selector(self.name, state)
        self._epochs = int(state["epochs"])
        self._quota, self._drawn = dict(state["quota"]), dict(state["drawn"])
        self._count()
        for name, saved in state["parts"].items():
            if name in self._parts:
                self._parts[name].load_state_dict(saved)

    def metrics(self) -> dict[str, float]:
        """Places of this epoch by taskset, and the metrics of every taskset's selector under its name."""
        found = {
            "epoch": max(0.0, self._epochs + sum(self._drawn.values()) / max(1, sum(self._quota.values())))
        }
        for name, part in self._parts.items():
            found[f"drawn/{name}"] = float(self._drawn.get(name, 0))
            for key, value in part.metrics().items():
                # a pass rate names its taskset already
                found[key if key.startswith("pass_rate/") else f"{name}/{key}"] = value
        return found


def largest_remainder(shares: np.ndarray, total: int) -> list[int]:
    """Whole numbers in proportion to `shares` that sum to `total` (Hamilton's method; ties to the first)."""
    exact = shares / shares.sum() * total
    quota = np.floor(exact).astype(int)
    left = total - int(quota.sum())
    quota[np.argsort(-(exact - quota), kind="stable")[:left]] += 1
    found: list[int] = quota.tolist()
    return found
