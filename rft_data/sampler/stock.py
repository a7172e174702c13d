"""The groups of a sampler and the leases they are in, kept in step with the policy's order.

It knows no version and writes nothing down; which groups may be leased, and when, is the sampler's to say.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from rft_data.rows import GroupResult, Lease
from rft_data.sampler.book import LEASED, READY, STALE, TRAINED, Book
from rft_data.sampler.policy import Candidate, Policy
from rft_data.sampler.shelf import Shelf


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A lease that is not settled."""

    lease: Lease
    candidates: tuple[Candidate, ...]
    """Its groups, as far as they are known here."""
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
        self._open: dict[str, int] = {}
        self._places = itertools.count()
        self._arrivals = itertools.count()

    def open(self, group_id: str, step: int) -> None:
        """A ticket was given, for an engine with weights of this many optimizer steps."""
        self.book.open(group_id)
        self._open[group_id] = place = next(self._places)
        self._policy.opened(place, step)

    def close(self, group_id: str, state: str) -> int:
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
        known = [self._candidates[group_id] for group_id in lease.group_ids if group_id in self._candidates]
        self.held[lease.step] = Held(lease, tuple(known), step)
        self.in_flight += len(lease.group_ids)
        for candidate in known:
            self.shelf.remove(candidate)
            if candidate.uses:
                self.reuses += 1
            else:
                self.book.move(candidate.group_id, LEASED)
        self._policy.taken(known)

    def give_back(self, step: int) -> None:
        """A held lease was released."""
        held = self._let_go(step)
        for candidate in held.candidates:
            self.shelf.add(candidate)
            if candidate.uses:
                self.reuses -= 1
            else:
                self.book.move(candidate.group_id, READY)
        self._policy.returned(held.candidates)

    def finish(self, step: int) -> Held:
        """A held lease was trained; its groups may be leased again as far as the policy's limit goes."""
        held = self._let_go(step)
        self.settled.add(step)
        self.settled_groups += len(held.lease.group_ids)
        for candidate in held.candidates:
            del self._candidates[candidate.group_id]
            self.book.move(candidate.group_id, TRAINED)
            used = dataclasses.replace(candidate, uses=candidate.uses + 1)
            if used.uses < self._policy.limit(used):
                self._put(used)
        return held

    def expire(self, candidates: Sequence[Candidate]) -> None:
        """These may never be leased again; those never trained are stale."""
        for candidate in candidates:
            del self._candidates[candidate.group_id]
            self.shelf.remove(candidate)
            self._policy.discard(candidate)
            if candidate.uses == 0:
                self.book.move(candidate.group_id, STALE)

    def _put(self, candidate: Candidate) -> None:
        self._candidates[candidate.group_id] = candidate
        self.shelf.add(candidate)
        self._policy.add(candidate)

    def _let_go(self, step: int) -> Held:
        held = self.held.pop(step)
        self.in_flight -= len(held.lease.group_ids)
        return held
