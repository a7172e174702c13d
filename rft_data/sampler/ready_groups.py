"""The groups that could be leased now, by the age of their weights and by arrival."""

from __future__ import annotations

import heapq
from collections import Counter

from rft_data.sampler.policy import Candidate


class Shelf:
    """Finds what has grown too old without looking at the rest."""

    def __init__(self) -> None:
        self._by_step: dict[int, dict[str, Candidate]] = {}
        self._steps: list[int] = []
        self._waiting: Counter[int] = Counter()

    def add(self, candidate: Candidate) -> None:
        """Take a group in; one of another run has no age."""
        if candidate.step is None:
            return
        if candidate.step not in self._by_step:
            self._by_step[candidate.step] = {}
            heapq.heappush(self._steps, candidate.step)
        self._by_step[candidate.step][candidate.group_id] = candidate
        self._waiting[candidate.arrived_step] += candidate.uses == 0

    def remove(self, candidate: Candidate) -> None:
        """Take it out."""
        if candidate.step is not None:
            del self._by_step[candidate.step][candidate.group_id]
            self._waiting[candidate.arrived_step] -= candidate.uses == 0

    def older_than(self, step: int) -> list[Candidate]:
        """Groups of the oldest weights here, if these are older than `step`; ask again for the next."""
        while self._steps and self._steps[0] < step:
            if oldest := self._by_step[self._steps[0]]:
                return list(oldest.values())
            del self._by_step[heapq.heappop(self._steps)]
        return []

    def ages(self, step: int) -> tuple[float, float]:
        """Mean and largest number of optimizer steps that never-trained groups have waited at `step`."""
        self._waiting = +self._waiting
        groups = self._waiting.total()
        if groups == 0:
            return 0.0, 0.0
        waited = sum((step - arrived) * n for arrived, n in self._waiting.items())
        return waited / groups, float(step - min(self._waiting))
