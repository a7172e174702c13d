"""Order of arrival: never waits for a slow group, so a slow group may grow too old and become stale."""

from __future__ import annotations

from rft_data.sampler.policy import Candidate, Moment, Policy
from rft_data.sampler.pool import Pool


class ReadyFirst(Policy):
    """First arrived, first trained. After a restart: in order of admission."""

    def __init__(self) -> None:
        self._ready = Pool(lambda candidate: candidate.arrival)

    def add(self, candidate: Candidate) -> None:
        """The group may be leased."""
        self._ready.add(candidate)

    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased."""
        self._ready.discard(candidate)

    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The first n to have arrived."""
        return self._ready.first(n)
