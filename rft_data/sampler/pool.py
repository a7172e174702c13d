"""Candidates in order of a key: a heap; removed entries stay in it and are skipped."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from rft_data.sampler.policy import Candidate

_SLACK = 1024


class Pool:
    """Add and discard in O(log N), the first n in O(n log N)."""

    def __init__(self, key: Callable[[Candidate], object]) -> None:
        """`key`: what to order by, smallest first."""
        self._key = key
        self._heap: list[tuple[object, int, Candidate]] = []
        self._live: dict[int, int] = {}
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate, or replace it."""
        serial = self._live[candidate.place] = next(self._serials)
        heapq.heappush(self._heap, (self._key(candidate), serial, candidate))

    def discard(self, candidate: Candidate) -> None:
        """Remove the candidate, if present."""
        self._live.pop(candidate.place, None)
        if len(self._heap) > 2 * len(self._live) + _SLACK:  # removed entries must not accumulate
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    def first(self, n: int) -> list[Candidate]:
        """The first n, or all when there are fewer; none is removed."""
        entries: list[tuple[object, int, Candidate]] = []
        while self._heap and len(entries) < n:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                entries.append(entry)
        for entry in entries:
            heapq.heappush(self._heap, entry)
        return [candidate for _, _, candidate in entries]

    def _is_live(self, entry: tuple[object, int, Candidate]) -> bool:
        return self._live.get(entry[2].place) == entry[1]
