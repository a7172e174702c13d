"""Workflows and rewards: how one rollout is played and scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rft_data.core.engine import Engine, Sampling
from rft_data.core.masking import masked
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RowSource, UnscoredCause


@dataclass(frozen=True, slots=True)
class Unscored:
    """A reward that could not be computed; never confused with a reward of zero."""

    reason: str
    """The reason; empty when the reward comes later, as feedback."""
    cause: UnscoredCause = UnscoredCause.REWARD
    """Kind of the failure. A failure of the world around the model is tried again."""

    def __post_init__(self) -> None:
        """Hide values of the environment, for reasons are stored."""
        object.__setattr__(self, "reason", masked(self.reason))


class Reward(Protocol):
    """Scores one finished completion; docs/rewards.md has what else a reward may take and return."""

    def __call__(self, task: Task, completion: str) -> float | Mapping[str, float] | Unscored:
        """Return a finite number, parts or why there is none; must not raise for bad model output."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The position of a rollout in its run; it determines the ids of its experiences."""

    run_id: str
    group_id: str
    member: int
    attempt: int
    explorer_id: str
    source: RowSource
    sampling: Sampling


class Workflow(Protocol):
    """Plays one rollout of one task and returns its experiences (one, or one per step)."""

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Raise freely: a failed rollout becomes data, not a crash."""
        ...
