"""Groups trained more than once, drawn by how much their rewards vary and how new they are.

Prioritised replay (arXiv:1511.05952) with the exponential age decay of arXiv:2604.16918, and the ratio of
uses to arrivals that Reverb calls samples per insert (arXiv:2102.04736).
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from bisect import bisect_left

from rft_data.core.errors import RecipeError
from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.pool import Pool

_FLOOR = 1e-3
"""Added to every priority, so that a group whose rewards do not vary keeps a chance."""
_TINY = 1e-300
"""Keeps a draw of exactly 0 out of a logarithm."""


class Replay(Policy):
    """New groups first, oldest admitted first; the rest of a lease are used groups, drawn by weight.

    Uses never exceed `samples_per_insert` times the groups that arrived. Where a run explores, the first
    step's worth of groups allows no second use, so of each later lease about 1 / `samples_per_insert` is new.
    Only as many groups are admitted as that takes, and as many more as there are too few used groups for:
    exploring and training never wait for each other. An open group that could not be trained in time
    after a lease is waited for, so reuse makes no group stale.
    """

    def __init__(
        self,
        max_reuse: int = 4,
        alpha: float = 0.6,
        tau: float = 500.0,
        samples_per_insert: float = 2.0,
        reuse_window: int = 8,
        by: str = "advantage",
        seed: int = 0,
    ) -> None:
        """Args:
            max_reuse: steps one group may be trained in, the first included.
            alpha: exponent of the priority; 0 draws by age alone.
            tau: optimizer steps in which a group's weight falls to 1/e.
            samples_per_insert: uses per arrived group, over the run.
            reuse_window: optimizer steps after its weights in which a group may be trained again; it replaces
                `max_staleness`, which bounds the first use only.
            by: `advantage` (mean |reward - mean|) or `variance` of the group's rewards.

        Raises: RecipeError for a value out of range, and for a ratio that the others make impossible.
        """
        limits = {
            "max_reuse": max_reuse >= 1,
            "alpha": alpha >= 0,
            "tau": tau > 0,
            "samples_per_insert": samples_per_insert >= 1,
            "reuse_window": reuse_window >= 1,
            "by": by in ("advantage", "variance"),
        }
        if not all(limits.values()):
            wrong = ", ".join(f"'{name}'" for name, holds in limits.items() if not holds)
            raise RecipeError(
                f"sampler replay: {wrong} out of range; 'max_reuse', 'samples_per_insert' and 'reuse_window' "
                "are at least 1, 'alpha' at least 0, 'tau' above 0, 'by' is 'advantage' or 'variance'."
            )
        if samples_per_insert > min(max_reuse, reuse_window + 1):
            raise RecipeError(
                f"sampler replay: 'samples_per_insert' is {samples_per_insert:g}, and a group is trained at "
                f"most 'max_reuse' ({max_reuse}) times, within 'reuse_window' ({reuse_window}) steps; raise "
                "these, or lower the ratio."
            )
        self.max_uses = max_reuse
        self.reuse_window = self._window = reuse_window
        self._alpha = alpha
        self._tau = tau
        self._extra_per_insert = samples_per_insert - 1
        self._by = by
        self._seed = seed
        self._open: dict[int, int] = {}
        """Steps behind the weights of open groups, by place."""
        self._unused = Pool(lambda candidate: candidate.place)
        self._used: dict[int, Candidate] = {}

    def opened(self, place: int, step: int) -> None:
        """A ticket was given."""
        self._open[place] = step

    def closed(self, place: int) -> None:
        """The ticket was closed."""
        self._open.pop(place, None)

    def add(self, candidate: Candidate) -> None:
        """The group may be leased, for the first time or again."""
        if candidate.uses:
            self._used[candidate.place] = candidate
        else:
            self._unused.add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._unused.discard(candidate)
        self._used.pop(candidate.place, None)

    def own_places(self, first: int, last: int, moment: Moment) -> int:
        """How many of these groups are trained for the first time, with as much reuse as is allowed.

        Of the next lease's groups at least those that there are too few used groups for.
        """
        places = last - first - moment.in_flight
        taken = moment.inserted - len(self._unused)

        def filled(fresh: int) -> int:
            return fresh + self._credit(taken + fresh, moment)

        fresh = bisect_left(range(max(places, 0)), places, key=filled)
        next_lease = min(places, moment.groups_per_step)
        return moment.fresh_in_flight + max(fresh, next_lease - len(self._reusable(moment)))

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """New groups, then used ones drawn by weight; none while an open group has to be waited for.

        Draws are without replacement. They depend on the lease's step and on the order of admission of the
        used groups alone, so a lease that was released, or is made after a restart, is drawn in the same way.
        """
        fresh = self._unused.first(n)
        if self._must_wait(len(self._unused) - len(fresh), moment):
            return []
        reuse = min(n - len(fresh), self._credit(moment.inserted, moment))
        used = self._reusable(moment) if reuse else []
        rng = random.Random(f"{self._seed}/{moment.lease}")  # noqa: S311 (sampling, no secret)
        # The largest of log weight + Gumbel noise: draws in proportion, without replacement. Logarithms,
        # because weights that grow by exp(step / tau) overflow.
        noise = [-math.log(max(rng.expovariate(1.0), _TINY)) for _ in used]
        keyed = [(self._log_weight(c) + z, c.place, c) for c, z in zip(used, noise, strict=True)]
        return fresh + [candidate for _, _, candidate in heapq.nlargest(reuse, keyed)]

    def _credit(self, inserted: int, moment: Moment) -> int:
        """How many more uses beyond a group's first are allowed with `inserted` groups."""
        first_step = 0 if moment.max_staleness is None else moment.groups_per_step
        allowed = math.floor(self._extra_per_insert * max(0, inserted - first_step) + 1e-9)
        return max(0, allowed - moment.reuses)

    def _reusable(self, moment: Moment) -> list[Candidate]:
        """The used groups that may be in this lease, in order of admission."""
        oldest = -math.inf if moment.max_staleness is None else moment.step - self._window
        inside = [c for c in self._used.values() if c.step is None or c.step >= oldest]
        return sorted(inside, key=lambda candidate: candidate.place)

    def _must_wait(self, waiting: int, moment: Moment) -> bool:
        """Whether an open group would be too old after this lease; `waiting` ready groups may come before."""
        bound = moment.max_staleness
        if bound is None:
            return False
        return any(
            moment.step + 1 + (waiting + ahead) // moment.groups_per_step - step > bound
            for ahead, step in enumerate(self._open.values())
        )

    def _log_weight(self, candidate: Candidate) -> float:
        rewards = [reward for reward in candidate.result.rewards if reward is not None]
        mean = statistics.fmean(rewards) if rewards else 0.0
        power = 1 if self._by == "advantage" else 2
        priority = statistics.fmean(abs(reward - mean) ** power for reward in rewards) if rewards else 0.0
        # a group of another run was sampled before this run's first step
        return self._alpha * math.log(priority + _FLOOR) + (candidate.step or 0) / self._tau
