"""The base of all task selectors: tasks in and out of play, checks of results, and the saved state.

A selector adds only how it chooses tasks and what it learns from a group.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any, ClassVar

import numpy as np

from rft_data.core.errors import ResumeError, StalledError
from rft_data.core.groups import GroupResult
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import GroupOutcome
from rft_data.tasks.selectors.calibration import Calibration
from rft_data.tasks.selectors.columns import Columns, Kinds
from rft_data.tasks.selectors.interfaces import NoTasksError
from rft_data.tasks.selectors.roster import Roster

_COMMON_COLUMNS: Kinds = {
    "visits": (np.int32, 0),
    "last_mean": (np.float32, 0.0),
    "version": (np.int32, -1),
    "retired": (np.bool_, False),
}


class TaskSelector:
    """Base class: implement `_choose`, and `_learn` and `_predict` for a selector that learns.

    A restored selector chooses exactly as the saved one would have, if it is given the same tasks, first
    ones and added ones, in any order. The state of tasks that no longer exist is dropped.
    """

    name: ClassVar[str]
    """Name in messages and in saved states; that of a built-in is its name in recipes."""
    columns: ClassVar[Kinds] = {}
    """Columns that it keeps per task, beside those of every selector."""
    learns: ClassVar[bool] = True
    """Whether results change its choices."""

    def __init_subclass__(cls) -> None:
        """A class that gives itself no name is called as it is in Python."""
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Check your own arguments first (ValueError), then call this.

        Raises: NoTasksError (a RecipeError) when there is no task.
        """
        if not tasks:
            raise NoTasksError(
                f"selector '{self.name}' has no task to choose from; look at the recipe's 'tasks'."
            )
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._roster = Roster(tasks)
        self._columns = Columns({**_COMMON_COLUMNS, **self.columns}, len(self._roster))
        self._in_play = np.ones(len(self._roster), bool)
        self._out = 0
        self._clipped = 0
        self._seen: array[int] = array("i")
        """Visited places, in the order of their first visits."""
        self._deck: np.ndarray | None = None
        self.calibration = Calibration()
        """Predicted and measured pass rates; empty for a selector that predicts nothing."""
        self._derive()

    # --- for derived classes ---

    def _derive(self) -> None:
        """Compute what follows from the tasks alone; called again whenever tasks are added."""

    def _choose(self, n: int) -> Sequence[int]:
        """Places of n different tasks in play; there are at least n."""
        raise NotImplementedError

    def _predict(self, place: int) -> float | None:
        """Expected pass rate of a task's next group; None for a selector that predicts nothing."""
        return None

    def _shape(self, place: int) -> tuple[float, float] | None:
        """Both parameters of the Beta posterior of a task's pass rate; None for a selector without one."""
        return None

    def _learn(self, place: int, passes: float, n: int) -> None:
        """Learn from a group of n scored rollouts whose rewards, in [0, 1], sum to `passes`."""

    def _own_state(self) -> dict[str, object]:
        """State beside columns and generator that decides the next choice, as JSON values."""
        return {}

    def _load_own_state(self, state: Mapping[str, object]) -> None:
        """Restore what `_own_state` returned."""

    def _candidates(self, most: int, least: int) -> np.ndarray:
        """Places in play to choose from: all if there are at most `most`, else about that many.

        They are consecutive in a fixed random order of the tasks, from a random start: each task is
        included with the same probability, and the cost does not grow with the number of tasks.
        """
        size = len(self._roster)
        if self.in_play <= most:
            return np.flatnonzero(self._in_play)
        if self._deck is None:
            self._deck = np.random.default_rng([self._seed, size]).permutation(size).astype(np.int32)
        start, window = int(self._rng.integers(size)), most * size // self.in_play
        while True:
            window = min(window, size)
            run = np.concatenate(
                [self._deck[start : start + window], self._deck[: max(0, start + window - size)]]
            )
            found: np.ndarray = run[self._in_play[run]]
            if len(found) >= least or window == size:
                return found
            window *= 2

    # --- methods that a run calls ---

    @property
    def in_play(self) -> int:
        """How many tasks may be selected."""
        return len(self._roster) - self._out

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks (a task repeats when fewer than n are in play).

        Raises: StalledError when every task is retired.
        """
        chosen: list[int] = []
        while len(chosen) < n:
            if not self.in_play:
                raise StalledError(
                    f"selector '{self.name}': all {len(self._roster)} tasks are retired; revive some, add "
                    "new ones, or loosen the rule that retires them."
                )
            chosen += self._choose(min(n - len(chosen), self.in_play))
        return self._roster.keys(chosen)

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Learn from the groups that arrived and have at least one scored rollout.

        Ignored are failed and cancelled groups, unknown tasks, and a group sampled with older weights
        than a group of the same task from before. An unscored member (None or not finite) is left out. A
        reward outside [0, 1] is clipped and counted in `clipped_rewards`; one between is partial credit.
        """
        if not self.learns:
            return
        places = self._roster.places([result.task for result in results])
        versions = self._columns["version"]
        for place, result in zip(places, results, strict=True):
            if place >= 0 and result.version_min >= versions.item(place):
                self._learn_from(place, result)

    def _learn_from(self, place: int, result: GroupResult) -> None:
        rewards = scored(result)
        if not rewards:
            return
        if min(rewards) < 0.0 or max(rewards) > 1.0:
            clipped = np.clip(rewards, 0.0, 1.0).tolist()
            self._clipped += sum(a != b for a, b in zip(rewards, clipped, strict=True))
            rewards = clipped
        passes, n = sum(rewards), len(rewards)
        visits, last = self._columns["visits"], self._columns["last_mean"]
        before = visits.item(place)
        if not before:
            self._seen.append(place)
        predicted = self._predict(place)
        if predicted is not None:
            seen = last.item(place) if before else None
            self.calibration.record(predicted, seen, passes, sum(map(mul, rewards, rewards)), n)
        self._learn(place, passes, n)
        visits[place] = before + 1
        last[place] = passes / n
        self._columns["version"][place] = result.version_min

    def add(self, tasks: Sequence[Task]) -> None:
        """Bring new tasks into play; known tasks are unchanged."""
        more = self._roster.add(tasks)
        if more:
            self._columns.grow(more)
            self._in_play = np.concatenate([self._in_play, np.ones(more, bool)])
            self._deck = None
            self._derive()

    def posterior(self, keys: Sequence[TaskKey]) -> list[tuple[float, float] | None]:
        """Both parameters of the Beta posterior of each task's pass rate.

        None for an unknown task, and for every task where the selector keeps no such posterior.
        """
        return [None if place < 0 else self._shape(place) for place in self._roster.places(keys)]

    def retire(self, keys: Iterable[TaskKey]) -> None:
        """Take tasks out of play; unknown keys are ignored."""
        self._set_retired(keys, True)

    def revive(self, keys: Iterable[TaskKey]) -> None:
        """Bring retired tasks back into play, with what was learned about them."""
        self._set_retired(keys, False)

    def _set_retired(self, keys: Iterable[TaskKey], retired: bool) -> None:
        known = [place for place in self._roster.places(list(keys)) if place >= 0]
        self._columns["retired"][known] = retired
        self._take_out()

    def _take_out(self) -> None:
        self._in_play = ~self._columns["retired"]
        self._out = int(self._columns["retired"].sum())

    def state_dict(self) -> dict[str, object]:
        """All state that decides the next choice; its size grows with the visited and retired tasks only."""
        unseen = np.flatnonzero(self._columns["retired"] & (self._columns["visits"] == 0))
        places = np.concatenate([np.array(self._seen, np.int64), unseen])
        return {
            "selector": self.name,
            "rng": self._rng.bit_generator.state,
            "added": self._roster.added(),
            "tasks": self._roster.pack(places),
            "columns": self._columns.pack(places),
            "calibration": self.calibration.state_dict(),
            "clipped": self._clipped,
            **self._own_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises: ResumeError if the state belongs to another selector.
        """
        check_saved_selector(self.name, state)
        self._roster.arrange(state["added"])
        self._columns.reset(len(self._roster))
        places = self._roster.unpack(state["tasks"])
        self._columns.unpack(state["columns"], places)
        self._seen = array("i", [p for p in places.tolist() if p >= 0 and self._columns["visits"].item(p)])
        self._deck = None
        self._take_out()
        self._derive()
        self._rng.bit_generator.state = state["rng"]
        self._clipped = int(state["clipped"])
        self.calibration.load_state_dict(state["calibration"])
        self._load_own_state(state)

    def metrics(self) -> dict[str, float]:
        """Shares of tasks visited and retired; calibration, for a selector that predicts."""
        size = len(self._roster)
        found = {"retired": self._out / size}
        if self.learns:
            found["visited"] = float(np.count_nonzero(self._columns["visits"])) / size
            found["clipped_rewards"] = float(self._clipped)
        return {**found, **self.calibration.metrics()}


def scored(result: GroupResult) -> list[float]:
    """The finite rewards of a group; none unless it arrived."""
    if result.outcome != GroupOutcome.ARRIVED:
        return []
    return [float(r) for r in result.rewards if r is not None and math.isfinite(r)]


def check_saved_selector(name: str, state: Mapping[str, object]) -> None:
    """Raises: ResumeError if a saved state belongs to another selector than `name`."""
    if state.get("selector") != name:
        raise ResumeError(
            f"the saved state is of selector '{state.get('selector')}', not '{name}'; resume with the recipe "
            "the run began with."
        )
