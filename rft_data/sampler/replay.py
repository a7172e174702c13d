"""Groups trained more than once, drawn by how much their rewards vary and how new they are.

Prioritised replay (arXiv:1511.05952) with the exponential age decay of arXiv:2604.16918. In proportional
sampling the common factor exp(-now / tau) cancels, so log p + step / tau is stored once and never refreshed.
"""

from __future__ import annotations

import math
import random
import statistics

from rft_data.core.errors import RecipeError
from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.weighted_pool import WeightedPool

_FLOOR = 1e-3
"""Added to every priority, so that a group whose rewards do not vary keeps a chance."""


class Replay(Policy):
    """Weighted draws without replacement, each group in at most `max_reuse` steps.

    Uses never exceed `samples_per_insert` times the groups that arrived (the contract of Reverb,
    arXiv:2102.04736): a lease that would need more is not granted. Only uses beyond a group's first are
    limited, so a group that was never trained can always be trained, and exploring and training never
    wait for each other.
    """

    def __init__(
        self,
        max_reuse: int = 4,
        alpha: float = 0.6,
        tau: float = 500.0,
        samples_per_insert: float = 2.0,
        by: str = "advantage",
        seed: int = 0,
    ) -> None:
        """Args:
            max_reuse: steps one group may be trained in, the first included.
            alpha: exponent of the priority; 0 draws by age alone.
            tau: optimizer steps in which a group's weight falls to 1/e.
            samples_per_insert: uses per arrived group, over the run.
            by: `advantage` (mean |reward - mean|) or `variance` of the group's rewards.

        Raises: RecipeError for a value out of range.
        """
        limits = {
            "max_reuse": max_reuse >= 1,
            "alpha": alpha >= 0,
            "tau": tau > 0,
            "samples_per_insert": samples_per_insert >= 1,
            "by": by in ("advantage", "variance"),
        }
        if not all(limits.values()):
            wrong = ", ".join(f"'{name}'" for name, holds in limits.items() if not holds)
            raise RecipeError(
                f"sampler replay: {wrong} out of range; 'max_reuse' and 'samples_per_insert' are at least 1, "
                "'alpha' at least 0, 'tau' above 0, 'by' is 'advantage' or 'variance'."
            )
        self.max_uses = max_reuse
        self._alpha = alpha
        self._tau = tau
        self._extra_per_insert = samples_per_insert - 1
        self._by = by
        self._seed = seed
        self._unused = WeightedPool()
        self._used = WeightedPool()

    def add(self, candidate: Candidate) -> None:
        """The group may be leased, for the first time or again."""
        pool = self._used if candidate.uses else self._unused
        pool.add(candidate, self._log_weight(candidate))

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._unused.discard(candidate)
        self._used.discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """Up to n groups, drawn by weight; used groups only as far as `samples_per_insert` allows.

        The lease's step is the seed, so there is no generator to save, and a lease that was released is
        drawn again in the same way.
        """
        draw = random.Random(f"{self._seed}/{moment.lease}").random  # noqa: S311 (sampling, no secret)
        credit = math.floor(self._extra_per_insert * moment.inserted + 1e-9) - moment.reuses
        drawn: dict[int, Candidate] = {}
        hidden: list[tuple[WeightedPool, Candidate, float]] = []
        while len(drawn) < n:
            pool = self._pool(draw(), credit > 0)
            if pool is None:
                break
            candidate, log_weight = pool.draw(draw())
            # A second hit is ignored; the rest is still drawn in proportion, which is cheaper than removing
            # every drawn group. A group hit twice is removed, or one heavy group would be hit endlessly.
            if candidate.place in drawn:
                pool.discard(candidate)
                hidden.append((pool, candidate, log_weight))
                continue
            credit -= pool is self._used
            drawn[candidate.place] = candidate
        for pool, candidate, log_weight in hidden:
            pool.add(candidate, log_weight)
        return list(drawn.values())

    def _pool(self, u: float, reuse: bool) -> WeightedPool | None:
        """The pool to draw from, by total weight."""
        if not reuse or not self._used:
            return self._unused if self._unused else None
        if not self._unused:
            return self._used
        odds = math.exp(min(self._used.log_total - self._unused.log_total, 700.0))
        return self._used if u * (1 + odds) < odds else self._unused

    def _log_weight(self, candidate: Candidate) -> float:
        rewards = [reward for reward in candidate.result.rewards if reward is not None]
        mean = statistics.fmean(rewards) if rewards else 0.0
        power = 1 if self._by == "advantage" else 2
        priority = statistics.fmean(abs(reward - mean) ** power for reward in rewards) if rewards else 0.0
        # a group of another run was sampled before this run's first step
        return self._alpha * math.log(priority + _FLOOR) + (candidate.step or 0) / self._tau
