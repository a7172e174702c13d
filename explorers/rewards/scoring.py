"""The reward of a recipe: weighted components, each computed here (trusted) or in a child process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.reward_pool import RewardPool
from explorers.rewards.reward_process import Scored
from explorers.rewards.rules import is_trusted, judged, make_reward
from rft_data.core.errors import RecipeError
from rft_data.core.protocols import Reward, Unscored
from rft_data.core.rows import Task


class Rewards:
    """Scores finished completions; the reward is the weighted sum of the parts, None if one is unscored.

    A task that names a reward of its own is scored by that component alone.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        local: Mapping[str, Reward],
        pool: RewardPool | None = None,
        meter: Meter | None = None,
    ) -> None:
        """`weights`: of every component by name; those not in `local` are computed by `pool`."""
        self._weights = weights
        self._local = local
        self._pool = pool
        self._meter = meter or Meter()

    @property
    def restarts(self) -> int:
        """How often a child process of a reward had to be started again."""
        return self._pool.restarts if self._pool else 0

    async def score(self, task: Task, completion: str) -> dict[str, Any]:
        """The reward columns of an experience: `reward`, `reward_parts`, `unscored_reason`."""
        with self._meter.during("rewarding"):
            parts = self._start(task, completion)
            try:
                scored = {
                    name: part if isinstance(part, Scored) else await asyncio.wrap_future(part)
                    for name, part in parts.items()
                }
            finally:
                for part in parts.values():
                    if isinstance(part, Future):
                        part.cancel()  # the rollout was cancelled; no effect on a part that is done
        for one in scored.values():
            self._meter.reward_took(one.seconds)
        return reward_columns(self._weights, {name: one.value for name, one in scored.items()})

    def score_all(self, pairs: Sequence[tuple[Task, str]]) -> list[dict[str, Any]]:
        """The same for many completions at once, without an event loop."""
        started = [self._start(task, completion) for task, completion in pairs]
        return [
            reward_columns(
                self._weights,
                {
                    name: (part if isinstance(part, Scored) else part.result()).value
                    for name, part in parts.items()
                },
            )
            for parts in started
        ]

    def close(self) -> None:
        """End the child processes; idempotent."""
        if self._pool:
            self._pool.close()

    def _start(self, task: Task, completion: str) -> dict[str, Scored | Future[Scored]]:
        """Start every component; those in children first, so that they run while the others do."""
        names = list(self._weights) if task.reward is None else [task.reward]
        if not self._weights.keys() >= set(names):
            why = f"the task asks for it, and the recipe has only {sorted(self._weights)}"
            return {str(task.reward): Scored(Unscored(why), 0.0)}
        sent: dict[str, Scored | Future[Scored]] = {}
        if self._pool:
            away = [name for name in names if name not in self._local]
            sent = {name: self._pool.submit(name, task, completion) for name in away}
        return {
            name: sent[name] if name in sent else _timed(self._local[name], task, completion)
            for name in names
        }


def make_rewards(
    components: Sequence[Mapping[str, Any]], limits: Limits, meter: Meter | None = None
) -> Rewards:
    """The reward that a recipe describes, its children started.

    Args: components: `{"use": name or import path, "weight": 1.0, "args": {}}` each.
    With no components the reward stays open: a workflow may have a reward of its own.
    Raises: RecipeError for one named twice, and what building a reward raises.
    """
    names = [str(one["use"]) for one in components]
    if len(set(names)) < len(names):
        raise RecipeError(f"explorer.reward names {names}; wanted each reward once.")
    weights = {str(one["use"]): float(one.get("weight", 1.0)) for one in components}
    arguments = {str(one["use"]): dict(one.get("args") or {}) for one in components}
    local = {name: make_reward(name, arguments[name]) for name in names if is_trusted(name)}
    away = [{"use": name, "args": arguments[name]} for name in names if name not in local]
    if not away:
        return Rewards(weights, local, None, meter)
    pool = RewardPool(
        away,
        processes=limits.reward_processes,
        deadline_s=limits.reward_deadline_s,
        memory_bytes=limits.reward_memory_mb << 20,
    )
    return Rewards(weights, local, pool, meter)


def reward_columns(weights: Mapping[str, float], values: Mapping[str, float | Unscored]) -> dict[str, Any]:
    """`reward`, `reward_parts` and `unscored_reason` from the values of the components."""
    parts = {name: value for name, value in values.items() if not isinstance(value, Unscored)}
    unscored = {name: value.reason for name, value in values.items() if isinstance(value, Unscored)}
    reasons = [f"reward '{name}': {reason}" for name, reason in unscored.items() if reason]
    total = None if unscored or not values else sum(part * weights[name] for name, part in parts.items())
    return {"reward": total, "reward_parts": parts, "unscored_reason": "; ".join(reasons) or None}


def _timed(reward: Reward, task: Task, completion: str) -> Scored:
    started = time.perf_counter()
    return Scored(judged(reward, task, completion), time.perf_counter() - started)
