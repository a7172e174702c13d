"""The groups of a sampler and the leases that hold them. The policy is told of every change.

It knows no versions and stores nothing. The sampler decides which groups may be leased, and when.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence

from rft_data.core.groups import GroupResult, Lease
from rft_data.core.words import GroupState
from rft_data.sampler.group_states import GroupStates
from rft_data.sampler.policy import Candidate, Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A lease that is not settled."""

    lease: Lease
    step: int
    """Optimizer steps behind the weights when it is trained."""


class Groups:
    """All groups of a sampler, each from its ticket to its last use."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.states = GroupStates()
        self.untrained = LeasableGroups()
        """Groups that may be leased for the first time."""
        self.reusable = LeasableGroups()
        """Groups that may be leased again."""
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
        self._leases_holding: Counter[str] = Counter()
        """Number of held leases that contain a group; after a restart a replayed group may be in several."""
        self._open: dict[str, int] = {}
        self._places = itertools.count()
        self._arrivals = itertools.count()

    def open(self, group_id: str, step: int) -> None:
        """Add a group for which a ticket was given; `step`: optimizer steps behind the engine's weights."""
        self.states.open(group_id)
        self.expect(group_id, step)

    def expect(self, group_id: str, step: int) -> None:
        """Give an open group the next place in the order of admission."""
        self._open[group_id] = place = next(self._places)
        self._policy.opened(place, step)

    def close(self, group_id: str, state: GroupState) -> int:
        """Set the state of an open group whose ticket was closed. If it is ready, call `offer` next.

        Returns: its place in the order of admission.
        """
        self.states.move(group_id, state)
        place = self._open.pop(group_id)
        self._policy.closed(place)
        return place

    def place(self) -> int:
        """The next place in the order of admission, for a group that has no ticket here."""
        return next(self._places)

    def offer(self, result: GroupResult, place: int, step: int | None, arrived_step: int) -> None:
        """Let a ready group be leased from now on."""
        candidate = Candidate(result, place, next(self._arrivals), step, arrived_step)
        self.inserted += 1
        self._put(candidate)

    def hold(self, lease: Lease, step: int) -> None:
        """Add a stored lease; it is trained when `step` optimizer steps are behind the weights."""
        self.held[lease.step] = Held(lease, step)
        self.in_flight += len(lease.group_ids)
        known = self._known(lease)
        for candidate in known:
            group_id = candidate.group_id
            if self._leases_holding[group_id] == 0:
                self._leasable(candidate).remove(candidate)
            if candidate.uses + self._leases_holding[group_id]:
                self.reuses += 1
            else:
                self.states.move(group_id, GroupState.LEASED)
            self._leases_holding[group_id] += 1
        self._policy.taken(known)

    def give_back(self, step: int) -> None:
        """Put the groups of a released lease back in their order."""
        known = self._known(self._end_lease(step))
        self._policy.returned(known)
        for candidate in known:
            group_id = candidate.group_id
            if candidate.uses + self._leases_holding[group_id]:
                self.reuses -= 1
            else:
                self.states.move(group_id, GroupState.READY)
            if self._leases_holding[group_id]:
                self._policy.discard(candidate)
            else:
                self._leasable(candidate).add(candidate)

    def finish(self, step: int) -> list[Candidate]:
        """Mark the groups of a lease as trained; those below the policy's limit may be leased again.

        Returns: its groups as they were before.
        """
        lease = self._end_lease(step)
        self.settled.add(step)
        self.settled_groups += len(lease.group_ids)
        known = self._known(lease)
        for candidate in known:
            used = dataclasses.replace(candidate, uses=candidate.uses + 1)
            self.states.move(used.group_id, GroupState.TRAINED)
            if self._leases_holding[used.group_id]:
                self._candidates[used.group_id] = used
            elif used.uses < self._policy.limit(used):
                self._put(used)
            else:
                del self._candidates[used.group_id]
        return known

    def expire(self, candidates: Sequence[Candidate]) -> None:
        """Remove groups that may never be leased; those never trained become stale."""
        for candidate in candidates:
            del self._candidates[candidate.group_id]
            self._leasable(candidate).remove(candidate)
            self._policy.discard(candidate)
            if candidate.uses == 0:
                self.states.move(candidate.group_id, GroupState.STALE)

    def _put(self, candidate: Candidate) -> None:
        self._candidates[candidate.group_id] = candidate
        self._leasable(candidate).add(candidate)
        self._policy.add(candidate)

    def _leasable(self, candidate: Candidate) -> LeasableGroups:
        return self.reusable if candidate.uses else self.untrained

    def _known(self, lease: Lease) -> list[Candidate]:
        return [self._candidates[group_id] for group_id in lease.group_ids if group_id in self._candidates]

    def _end_lease(self, step: int) -> Lease:
        lease = self.held.pop(step).lease
        self.in_flight -= len(lease.group_ids)
        self._leases_holding.subtract(lease.group_ids)
        self._leases_holding = +self._leases_holding
        return lease


class LeasableGroups:
    """The groups that may be leased now, ordered by age, so that the oldest are found without a scan."""

    def __init__(self) -> None:
        self._by_step: dict[int, dict[str, Candidate]] = {}
        self._steps: list[int] = []
        self._waiting: Counter[int] = Counter()

    def add(self, candidate: Candidate) -> None:
        """Add a group; a group of another run is ignored, because it has no age."""
        if candidate.step is None:
            return
        if candidate.step not in self._by_step:
            self._by_step[candidate.step] = {}
            heapq.heappush(self._steps, candidate.step)
        self._by_step[candidate.step][candidate.group_id] = candidate
        self._waiting[candidate.arrived_step] += 1

    def remove(self, candidate: Candidate) -> None:
        if candidate.step is not None:
            del self._by_step[candidate.step][candidate.group_id]
            self._waiting[candidate.arrived_step] -= 1

    def older_than(self, step: int) -> list[Candidate]:
        """The groups sampled with the oldest weights, if those are older than `step`; else none.

        Remove them and call again for the next oldest.
        """
        while self._steps and self._steps[0] < step:
            if oldest := self._by_step[self._steps[0]]:
                return list(oldest.values())
            del self._by_step[heapq.heappop(self._steps)]
        return []

    def ages(self, step: int) -> tuple[float, float]:
        """Mean and largest number of optimizer steps since the groups arrived, at `step`."""
        self._waiting = +self._waiting
        groups = self._waiting.total()
        if groups == 0:
            return 0.0, 0.0
        waited = sum((step - arrived) * n for arrived, n in self._waiting.items())
        return waited / groups, float(step - min(self._waiting))
