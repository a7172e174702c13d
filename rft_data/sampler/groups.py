"""The groups of a sampler and the leases they are in, kept in step with the policy's order.

It knows no version and writes nothing down; which groups may be leased, and when, is the sampler's to say.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence

from rft_data.core.rows import GroupResult, Lease
from rft_data.core.words import GroupState
from rft_data.sampler.group_states import Book
from rft_data.sampler.policy import Candidate, Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A lease that is not settled."""

    lease: Lease
    step: int
    """Optimizer steps behind the weights when it is trained."""


class Stock:
    """Every group from its ticket to its last use."""

    def __init__(self, policy: Policy) -> None:
        """`policy` is told of every change."""
        self._policy = policy
        self.book = Book()
        self.shelf = Shelf()
        self.held: dict[int, Held] = {}
        """Leases by step."""
        self.settled: set[int] = set()
        """Steps that are trained."""
        self.settled_groups = 0
        self.in_flight = 0
        """Groups in held leases."""
        self.inserted = 0
        """Groups that ever arrived with rows that training may use."""
        self.reuses = 0
        """Uses of groups beyond the first, held leases included."""
        self._candidates: dict[str, Candidate] = {}
        self._times: Counter[str] = Counter()
        """In how many held leases a group is: after a restart one that is replayed may be in several."""
        self._open: dict[str, int] = {}
        self._places = itertools.count()
        self._arrivals = itertools.count()

    def open(self, group_id: str, step: int) -> None:
        """A ticket was given, for an engine with weights of this many optimizer steps."""
        self.book.open(group_id)
        self.expect(group_id, step)

    def expect(self, group_id: str, step: int) -> None:
        """A group that is open in the book takes its place in the order of admission."""
        self._open[group_id] = place = next(self._places)
        self._policy.opened(place, step)

    def close(self, group_id: str, state: GroupState) -> int:
        """An open group came home; returns its place. An `offer` follows when its state is ready."""
        self.book.move(group_id, state)
        place = self._open.pop(group_id)
        self._policy.closed(place)
        return place

    def place(self) -> int:
        """The next place in the order of admission, for a group that has no ticket here."""
        return next(self._places)

    def offer(self, result: GroupResult, place: int, step: int | None, arrived_step: int) -> None:
        """A ready group may be leased from now on."""
        candidate = Candidate(result, place, next(self._arrivals), step, arrived_step)
        self.inserted += 1
        self._put(candidate)

    def hold(self, lease: Lease, step: int) -> None:
        """A lease was written down, to be trained when `step` optimizer steps are behind the weights."""
        self.held[lease.step] = Held(lease, step)
        self.in_flight += len(lease.group_ids)
        known = self._known(lease)
        for candidate in known:
            group_id = candidate.group_id
            if self._times[group_id] == 0:
                self.shelf.remove(candidate)
            if candidate.uses + self._times[group_id]:
                self.reuses += 1
            else:
                self.book.move(group_id, GroupState.LEASED)
            self._times[group_id] += 1
        self._policy.taken(known)

    def give_back(self, step: int) -> None:
        """A held lease was released."""
        known = self._known(self._let_go(step))
        self._policy.returned(known)
        for candidate in known:
            group_id = candidate.group_id
            if candidate.uses + self._times[group_id]:
                self.reuses -= 1
            else:
                self.book.move(group_id, GroupState.READY)
            if self._times[group_id]:
                self._policy.discard(candidate)
            else:
                self.shelf.add(candidate)

    def finish(self, step: int) -> list[Candidate]:
        """A held lease was trained; its groups may be leased again as far as the policy's limit goes.

        Returns: its groups as they were before.
        """
        lease = self._let_go(step)
        self.settled.add(step)
        self.settled_groups += len(lease.group_ids)
        known = self._known(lease)
        for candidate in known:
            used = dataclasses.replace(candidate, uses=candidate.uses + 1)
            self.book.move(used.group_id, GroupState.TRAINED)
            if self._times[used.group_id]:
                self._candidates[used.group_id] = used
            elif used.uses < self._policy.limit(used):
                self._put(used)
            else:
                del self._candidates[used.group_id]
        return known

    def expire(self, candidates: Sequence[Candidate]) -> None:
        """These may never be leased again; those never trained are stale."""
        for candidate in candidates:
            del self._candidates[candidate.group_id]
            self.shelf.remove(candidate)
            self._policy.discard(candidate)
            if candidate.uses == 0:
                self.book.move(candidate.group_id, GroupState.STALE)

    def _put(self, candidate: Candidate) -> None:
        self._candidates[candidate.group_id] = candidate
        self.shelf.add(candidate)
        self._policy.add(candidate)

    def _known(self, lease: Lease) -> list[Candidate]:
        return [self._candidates[group_id] for group_id in lease.group_ids if group_id in self._candidates]

    def _let_go(self, step: int) -> Lease:
        lease = self.held.pop(step).lease
        self.in_flight -= len(lease.group_ids)
        self._times.subtract(lease.group_ids)
        self._times = +self._times
        return lease


class Shelf:
    """The groups that could be leased now: finds what has grown too old without looking at the rest."""

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
