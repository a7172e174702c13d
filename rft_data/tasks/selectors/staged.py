"""A curriculum of stages; each has its own selector and ends after groups or at a pass rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rft_data.core.errors import ResumeError
from rft_data.core.groups import GroupResult
from rft_data.core.rows import Task, TaskKey
from rft_data.tasks.selectors.arguments import component, count, share
from rft_data.tasks.selectors.base import scored
from rft_data.tasks.selectors.interfaces import NoTasksError, SelectorMaker

_WINDOW = 64
"""Number of groups in the running pass rate, and the fewest that it needs."""


class Staged:
    """One selector after another over the same tasks.

    A stage ends after `groups` groups, or when the pass rate of what it played (mean reward, running over
    64 groups) is at least `pass_rate`, whichever comes first; the last stage never ends. Every stage's
    selector learns from every group, so that later stages start with that knowledge.
    """

    name: ClassVar[str] = "staged"

    def __init__(
        self, tasks: Sequence[Task], *, seed: int, make: SelectorMaker, stages: Sequence[Mapping[str, object]]
    ) -> None:
        """`stages`: `{use, args, until: {groups, pass_rate}}` each; the last has no `until`.

        Raises: ValueError for a bad argument; RecipeError when there is no task.
        """
        if isinstance(stages, str) or not isinstance(stages, Sequence) or not stages:
            raise ValueError(f"'stages' is {stages!r}; give a list of {{use, args, until}}")
        self._until = [_exit(i, stage, last=i == len(stages) - 1) for i, stage in enumerate(stages)]
        parts = [component(f"stages.{i}", _without_exit(stage), make) for i, stage in enumerate(stages)]
        if not tasks:
            raise NoTasksError("selector 'staged' has no task to choose from; look at the recipe's 'tasks'.")
        self._parts = [make(use, args, tasks, seed + i) for i, (use, args) in enumerate(parts)]
        self._stage = 0
        self._groups = 0
        self._pass_rate = 0.0

    @property
    def in_play(self) -> int:
        """How many tasks may be selected."""
        return self._parts[self._stage].in_play

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks, by this stage's selector.

        Raises: StalledError when every task is retired.
        """
        return self._parts[self._stage].select(n)

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Every stage's selector learns; then the stage may end."""
        for part in self._parts:
            part.observe(results)
        for result in results:
            rewards = scored(result)
            if rewards:
                self._groups += 1
                weight = 1.0 / min(self._groups, _WINDOW)
                mean = sum(min(max(r, 0.0), 1.0) for r in rewards) / len(rewards)
                self._pass_rate += weight * (mean - self._pass_rate)
                self._move_on()

    def _move_on(self) -> None:
        until = self._until[self._stage]
        enough = self._groups >= until.get("groups", float("inf"))
        able = self._groups >= _WINDOW and self._pass_rate >= until.get("pass_rate", float("inf"))
        if enough or able:
            self._stage = self._stage + 1
            self._groups = 0
            self._pass_rate = 0.0

    def add(self, tasks: Sequence[Task]) -> None:
        """Bring new tasks into play in every stage."""
        for part in self._parts:
            part.add(tasks)

    def retire(self, keys: Iterable[TaskKey]) -> None:
        """Take tasks out of play in every stage."""
        every = list(keys)
        for part in self._parts:
            part.retire(every)

    def revive(self, keys: Iterable[TaskKey]) -> None:
        """Bring retired tasks back in every stage."""
        every = list(keys)
        for part in self._parts:
            part.revive(every)

    def state_dict(self) -> dict[str, object]:
        """The position in the curriculum, and the state of every stage's selector."""
        return {
            "selector": self.name,
            "at": [self._stage, self._groups, self._pass_rate],
            "parts": [part.state_dict() for part in self._parts],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises: ResumeError if the state belongs to another selector, or to another number of stages.
        """
        if state.get("selector") != self.name or len(state["parts"]) != len(self._parts):
            raise ResumeError(
                f"the saved state is not of a selector 'staged' with {len(self._parts)} stages; resume with "
                "the recipe the run began with."
            )
        self._stage, self._groups, self._pass_rate = state["at"]
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)

    def metrics(self) -> dict[str, float]:
        """The stage (from 0), its running pass rate, and the metrics of its selector."""
        own = {"stage": float(self._stage), "stage_pass_rate": self._pass_rate}
        return {**self._parts[self._stage].metrics(), **own}


def _without_exit(stage: object) -> object:
    return {k: v for k, v in stage.items() if k != "until"} if isinstance(stage, Mapping) else stage


def _exit(i: int, stage: Mapping[str, object], *, last: bool) -> dict[str, float]:
    """When stage i ends; nothing for the last."""
    until = stage.get("until") if isinstance(stage, Mapping) else None
    if last and until is not None:
        raise ValueError(f"'stages.{i}.until': the last stage never ends; leave it out")
    if last:
        return {}
    if not isinstance(until, Mapping) or not until or set(until) - {"groups", "pass_rate"}:
        raise ValueError(f"'stages.{i}.until' is {until!r}; give 'groups', 'pass_rate' or both")
    found: dict[str, float] = {}
    if "groups" in until:
        found["groups"] = count(f"stages.{i}.until.groups", until["groups"])
    if "pass_rate" in until:
        found["pass_rate"] = share(f"stages.{i}.until.pass_rate", until["pass_rate"])
    return found
