"""A sampler policy: of the groups that wait, those with the lowest mean reward are trained first."""

from __future__ import annotations

from statistics import fmean

from rft_data import Candidate, Moment, SamplerPolicy


class HardestFirst(SamplerPolicy):
    """It decides an order and nothing else: leases, staleness and accounts are the sampler's."""

    def __init__(self) -> None:
        """It has no arguments and no state: after a restart all calls are repeated."""
        self._waiting: dict[int, Candidate] = {}

    def add(self, candidate: Candidate) -> None:
        """The group may be leased."""
        self._waiting[candidate.place] = candidate

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased any more."""
        self._waiting.pop(candidate.place, None)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """At most n groups; equal ones in the order in which they were admitted."""
        return sorted(self._waiting.values(), key=lambda one: (_mean(one), one.place))[:n]


def _mean(candidate: Candidate) -> float:
    rewards = [reward for reward in candidate.result.rewards if reward is not None]
    return fmean(rewards) if rewards else 0.0
