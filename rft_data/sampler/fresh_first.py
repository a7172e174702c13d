"""Newest weights first: batches are least stale, but groups that wait too long become stale untrained."""

from __future__ import annotations

from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.pool import Pool


class FreshFirst(Policy):
    """Groups with the newest `version_min` first, then the oldest admitted; groups of other runs last."""

    def __init__(self) -> None:
        self._ready = Pool(_freshness)

    def add(self, candidate: Candidate) -> None:
        """The group may be leased."""
        self._ready.add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._ready.discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The n freshest."""
        return self._ready.first(n)


def _freshness(candidate: Candidate) -> tuple[int, int]:
    return (1 if candidate.step is None else -candidate.step, candidate.place)
