"""How the components of a reward make one number: weights, bounds, gates, and which taskset gets which.

total = sum over the task's components of weight * min(max(value, min), max); a component whose gate is shut
adds nothing and is not computed. One unscored component leaves the total open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from explorers.rewards.contract import Outcome, Score
from explorers.rewards.unscored import reason_text
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import Unscored

WORLD = "world"
"""Name of the part of the reward that the world itself gives; a workflow adds it, with weight 1."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The condition under which a component counts."""

    reward: str
    """Name of a component before it."""
    at_least: float
    """Least value of that component, before bounds and weight."""


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One component of a reward."""

    name: str
    use: str
    weight: float = 1.0
    args: Mapping[str, object] = field(default_factory=dict)
    low: float = -math.inf
    high: float = math.inf
    gate: Gate | None = None
    tasksets: frozenset[str] | None = None
    """Tasksets it is for; None: all."""

    def counted(self, value: float) -> float:
        """The weighted and bounded value that is added to the total."""
        return min(max(value, self.low), self.high) * self.weight


class RewardColumns(TypedDict):
    """The reward of a row, as its columns."""

    reward: float | None
    reward_parts: Mapping[str, float]
    unscored_reason: str | None


class Composition:
    """The components of a reward, in order."""

    def __init__(self, parts: Sequence[RewardPart]) -> None:
        """Raises: RecipeError for a name used twice, or a gate that cannot work."""
        self._parts = {part.name: part for part in parts}
        names = [part.name for part in parts]
        if len(self._parts) < len(names):
            raise RecipeError(
                f"explorer.reward names {names}; wanted each reward once. Give a second one of the same kind "
                "a 'name' of its own."
            )
        for place, part in enumerate(parts):
            _check_part(part, names[:place], self._parts)

    @classmethod
    def from_recipe(cls, components: Sequence[Mapping[str, object]]) -> Composition:
        """From `{"use"}` each, and `weight`, `args`, `name`, `min`, `max`, `only_if`, `tasksets`."""
        return cls([_part(one) for one in components])

    @classmethod
    def weighted(cls, weights: Mapping[str, float]) -> Composition:
        """Components with nothing but a weight, by name."""
        return cls([RewardPart(name, name, weight) for name, weight in weights.items()])

    @property
    def parts(self) -> Sequence[RewardPart]:
        """All components."""
        return tuple(self._parts.values())

    def part(self, name: str) -> RewardPart:
        """A component by its name."""
        return self._parts[name]

    def chosen(self, task: Task) -> list[RewardPart] | Unscored:
        """The components that score a task; one that names a reward of its own is scored by that alone."""
        if task.reward is None:
            found = [one for one in self.parts if one.tasksets is None or task.taskset in one.tasksets]
            if found or not self._parts:
                return found
            return Unscored(f"no component of the reward is for taskset '{task.taskset}'")
        if task.reward not in self._parts:
            return Unscored(f"the task asks for it, and the recipe has only {sorted(self._parts)}")
        return [self._parts[task.reward]]

    def completed(
        self, row: Experience, found: Mapping[str, Outcome], parts: Sequence[RewardPart]
    ) -> Experience:
        """A row with what the components of groups gave, added to what it has of its own components.

        Args: parts: all components that score the task.
        """
        before: dict[str, Outcome] = {
            part.name: Score(row.reward_parts[part.name]) for part in parts if part.name in row.reward_parts
        }
        known = {**before, **found}
        missing = [part for part in parts if part.name not in known and is_open(part.gate, known)]
        columns = self.columns({part.name: known[part.name] for part in parts if part.name in known})
        reasons = filter(None, [row.unscored_reason, columns["unscored_reason"]])
        total = None if missing or row.unscored_reason else columns["reward"]
        return replace(
            row,
            reward=None if total is None else total + row.reward_parts.get(WORLD, 0.0),
            reward_parts={**row.reward_parts, **columns["reward_parts"]},
            unscored_reason="; ".join(reasons) or None,
        )

    def columns(self, found: Mapping[str, Outcome], *, whole: bool = True) -> RewardColumns:
        """`reward`, `reward_parts` and `unscored_reason` of a row; a component that did not run is left out.

        `whole`: False while components of the group are missing; the reward stays open then.
        """
        scores = {name: one for name, one in found.items() if isinstance(one, Score)}
        reasons = [
            reason_text(f"reward '{name}'", one) for name, one in found.items() if isinstance(one, Unscored)
        ]
        values: dict[str, float] = {}
        for name, score in scores.items():
            values[name] = score.value
            values.update((f"{name}.{part}", value) for part, value in score.parts.items())
        closed = whole and bool(found) and len(scores) == len(found)
        total = sum(self._parts[name].counted(one.value) for name, one in scores.items()) if closed else None
        return {
            "reward": total,
            "reward_parts": values,
            "unscored_reason": "; ".join(filter(None, reasons)) or None,
        }


def is_open(gate: Gate | None, found: Mapping[str, Outcome]) -> bool:
    """Whether a component with this gate counts, by what the components before it gave."""
    if gate is None:
        return True
    before = found.get(gate.reward)
    return isinstance(before, Score) and before.value >= gate.at_least


def _part(one: Mapping[str, Any]) -> RewardPart:
    use, gate, low, high = str(one["use"]), one.get("only_if"), one.get("min"), one.get("max")
    return RewardPart(
        name=str(one.get("name") or use),
        use=use,
        weight=float(one.get("weight", 1.0)),
        args=dict(one.get("args") or {}),
        low=-math.inf if low is None else float(low),
        high=math.inf if high is None else float(high),
        gate=None if gate is None else Gate(str(gate["reward"]), float(gate["at_least"])),
        tasksets=None if one.get("tasksets") is None else frozenset(one["tasksets"]),
    )


def _check_part(part: RewardPart, before: Sequence[str], parts: Mapping[str, RewardPart]) -> None:
    if part.low > part.high:
        raise RecipeError(
            f"reward '{part.name}' has min {part.low:g} above max {part.high:g}; exchange the two."
        )
    if part.gate is None:
        return
    other = part.gate.reward
    if other not in before:
        raise RecipeError(
            f"reward '{part.name}' has only_if.reward '{other}', which is no component before it;"
            f"{suggest(other, before)} Before it: {', '.join(before) or 'none'}."
        )
    missing = parts[other].tasksets
    if missing is not None and not (part.tasksets is not None and part.tasksets <= missing):
        raise RecipeError(
            f"reward '{part.name}' depends on '{other}', which is for the tasksets {sorted(missing)} only; "
            "give both the same 'tasksets'."
        )
