"""What every task selector is built on: tasks in and out of play, what may be learned from, the state.

A selector adds only how it chooses and what it learns from a group.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from rft_data.core.errors import RecipeError, ResumeError, StalledError
from rft_data.core.protocols import Selector
from rft_data.core.rows import GroupResult, Task, TaskKey
from rft_data.core.words import GroupOutcome
from rft_data.tasks.selectors.calibration import Calibration
from rft_data.tasks.selectors.columns import Columns, Kinds
from rft_data.tasks.selectors.roster import Roster

_OF_EVERY_TASK: Kinds = {
    "visits": (np.int32, 0),
    "last_mean": (np.float32, 0.0),
    "version": (np.int32, -1),
    "retired": (np.bool_, False),
}


class NoTasksError(RecipeError):
    """A selector was given no task; its arguments are fine."""


@runtime_checkable
class OpenSelector(Selector, Protocol):
    """A selector whose tasks may come and go during a run."""

    @property
    def in_play(self) -> int:
        """How many tasks may be selected."""
        ...

    def add(self, tasks: Sequence[Task]) -> None:
        """Bring new tasks into play; those it has already stay as they are."""
        ...

    def retire(self, keys: Iterable[TaskKey]) -> None:
        """Take tasks out of play: they are never selected until they are revived."""
        ...

    def revive(self, keys: Iterable[TaskKey]) -> None:
        """Bring retired tasks back, with what was learned of them."""
        ...


class SelectorMaker(Protocol):
    """Makes a selector of its name: what a selector of selectors is handed."""

    def __call__(
        self, use: str, args: Mapping[str, object], tasks: Sequence[Task], seed: int
    ) -> OpenSelector: ...


class TaskSelector:
    """Derive from this: say `_choose`, and for one that learns `_learn` and `_predict`.

    A restored selector chooses exactly as the saved one would have, if it was given the same tasks: the
    first ones and those added since, in any order. Tasks that are gone are forgotten, others are new.
    """

    name: ClassVar[str]
    """As recipes call it."""
    columns: ClassVar[Kinds] = {}
    """What it keeps per task beside what every selector keeps."""
    learns: ClassVar[bool] = True
    """Whether results change anything."""

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
        self._columns = Columns({**_OF_EVERY_TASK, **self.columns}, len(self._roster))
        self._in_play = np.ones(len(self._roster), bool)
        self._out = 0
        self._clipped = 0
        self._seen: array[int] = array("i")
        """Visited places, in the order of their first visits."""
        self._deck: np.ndarray | None = None
        self.calibration = Calibration()
        """Predicted against realised pass rates; empty for a selector that predicts nothing."""
        self._derive()

    # --- for the kinds of selectors ---

    def _derive(self) -> None:
        """Make what follows from the tasks alone; called again whenever there are more."""

    def _choose(self, n: int) -> Sequence[int]:
        """Places of n different tasks in play; there are at least n."""
        raise NotImplementedError

    def _predict(self, place: int) -> float | None:
        """Expected pass rate of a task's next group; None for a selector that predicts nothing."""
        return None

    def _learn(self, place: int, passes: float, n: int) -> None:
        """Learn from a group of n scored rollouts whose rewards, in [0, 1], sum to `passes`."""

    def _own_state(self) -> dict[str, object]:
        """What decides the next choice beside columns and generator, as JSON values."""
        return {}

    def _load_own_state(self, state: Mapping[str, object]) -> None:
        """Take up what `_own_state` gave."""

    def _candidates(self, most: int, least: int) -> np.ndarray:
        """Places in play to choose among: all of them when they are at most `most`, else about that many.

        Those are a run of a fixed random order of the tasks, from a random start on: each task is among
        them with the same probability, at a cost that does not grow with the number of tasks.
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

    # --- what a run calls ---

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

        Failed and cancelled groups, unknown tasks, and groups whose weights are older than those of a
        group of the same task that was learned from already teach nothing. An unscored member (None or
        not finite) is left out. A reward outside [0, 1] counts as the nearer end, and is counted in
        `clipped_rewards`; one inside is partial credit.
        """
        if not self.learns:
            return
        places = self._roster.places([result.task for result in results])
        versions = self._columns["version"]
        for place, result in zip(places, results, strict=True):
            if place >= 0 and result.version_min >= versions.item(place):
                self._hear(place, result)

    def _hear(self, place: int, result: GroupResult) -> None:
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
        """Bring new tasks into play; those it has already stay as they are."""
        more = self._roster.add(tasks)
        if more:
            self._columns.grow(more)
            self._in_play = np.concatenate([self._in_play, np.ones(more, bool)])
            self._deck = None
            self._derive()

    def retire(self, keys: Iterable[TaskKey]) -> None:
        """Take tasks out of play; keys it does not know are passed over."""
        self._set_retired(keys, True)

    def revive(self, keys: Iterable[TaskKey]) -> None:
        """Bring retired tasks back, with what was learned of them."""
        self._set_retired(keys, False)

    def _set_retired(self, keys: Iterable[TaskKey], retired: bool) -> None:
        known = [place for place in self._roster.places(list(keys)) if place >= 0]
        self._columns["retired"][known] = retired
        self._take_out()

    def _take_out(self) -> None:
        self._in_play = ~self._columns["retired"]
        self._out = int(self._columns["retired"].sum())

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next choice; grows with the tasks visited or retired, not with all."""
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

        Raises: ResumeError if it is the state of another selector.
        """
        check_state_of(self.name, state)
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
        """Share of tasks visited and retired; where it predicts, its calibration."""
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


def check_state_of(name: str, state: Mapping[str, object]) -> None:
    """Raises: ResumeError if a saved state is of another selector than `name`."""
    if state.get("selector") != name:
        raise ResumeError(
            f"the saved state is of selector '{state.get('selector')}', not '{name}'; resume with the recipe "
            "the run began with."
        )
