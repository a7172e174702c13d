"""An environment that takes its time: the single-turn workflow after a wait that belongs to the task."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from explorers.rewards.scoring import Rewards
from explorers.workflows.single_turn import SingleTurn
from rft_data.core.engine import Engine
from rft_data.core.rows import Experience, Task
from rft_data.core.workflow import RolloutContext

_SPREAD = 1.0
"""Standard deviation of the logarithm of a lognormal wait."""
_SLOW_SHARE, _SLOW_TIMES = 0.1, 10.0
"""The share of bimodal waits that are slow, and how many times slower they are."""


class SlowTurn:
    """Waits as `rollout_latency_s` says, then plays one turn."""

    def __init__(self, tokenizer: Any, rewards: Rewards, distribution: str, median_s: float) -> None:
        """`distribution`: `lognormal` or `bimodal`."""
        self._turn = SingleTurn(tokenizer, rewards)
        self._distribution = distribution
        self._median_s = median_s

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout; an evaluation does not wait."""
        if ctx.source == "rollout":
            await asyncio.sleep(rollout_latency_s(task.task_id, self._distribution, self._median_s))
        return await self._turn.run(task, engine, ctx)


def rollout_latency_s(task_id: str, distribution: str, median_s: float) -> float:
    """Seconds the environment takes for a task, the same in every run: a quantile drawn from its id."""
    quantile = (int(task_id[:12], 16) + 0.5) / 16**12
    if distribution == "lognormal":
        normal = statistics.NormalDist().inv_cdf(quantile)
        return float(median_s * 2.718281828459045 ** (_SPREAD * normal))
    return median_s * (_SLOW_TIMES if quantile > 1 - _SLOW_SHARE else 1.0)
