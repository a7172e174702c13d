"""What a policy is: the order in which groups are leased, and nothing else.

Admission, states, leases and the staleness sweep are the sampler's (`group_sampler.py`), so a policy
cannot lose a group, lease one twice or break the bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rft_data.core.rows import GroupResult


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that arrived and that training may use."""

    result: GroupResult
    place: int
    """Order of admission over all groups of the sampler; unique. Groups of other runs come first."""
    arrival: int
    """Order of arrival; unique."""
    step: int | None
    """Optimizer steps behind its oldest weights; None for a group this run did not sample."""
    arrived_step: int
    """Optimizer steps behind the newest weights when it arrived."""
    uses: int = 0
    """Optimizer steps it has been trained in."""

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self.result.ticket.group_id


@dataclass(frozen=True, slots=True)
class Moment:
    """What a policy may know of the lease it chooses for."""

    lease: int
    """The lease's step: what a random policy seeds itself with, so that asked again it answers the same."""
    step: int
    """Optimizer steps that will be behind the weights when the lease is trained."""
    groups_per_step: int
    max_staleness: int | None
    """The bound, in optimizer steps; None for none."""
    inserted: int
    """Groups that ever arrived with rows that training may use."""
    in_flight: int
    """Groups in leases that are not settled yet."""
    reuses: int
    """Uses of groups beyond each one's first, leases in flight included."""


class Policy(ABC):
    """The order of leasing; derive from it for one of your own.

    Everything it is told can be told again after a restart from stored groups and leases, in admission
    order, so most policies have no state to save.
    """

    max_uses = 1
    """The largest `limit` of any group; the ledger must allow as many."""

    def limit(self, candidate: Candidate) -> int:
        """In how many steps this group may be trained."""
        return self.max_uses

    def opened(self, place: int, step: int) -> None:
        """A ticket was given; `step`: optimizer steps behind the engine's weights."""
        return

    def closed(self, place: int) -> None:
        """The ticket was closed, whatever came of it; an `add` follows when its group may be leased."""
        return

    @abstractmethod
    def add(self, candidate: Candidate) -> None:
        """The group may be leased: it arrived, or was trained and may be again."""

    @abstractmethod
    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased (now); no error when it is not there."""

    @abstractmethod
    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The next groups to lease in lease order, at most n, fewer when the order makes it wait.

        Changes nothing: `taken` follows if the lease was written down.
        """

    def taken(self, candidates: Sequence[Candidate]) -> None:
        """These groups were leased."""
        for candidate in candidates:
            self.discard(candidate)

    def returned(self, candidates: Sequence[Candidate]) -> None:
        """Their lease was given back untrained."""
        for candidate in candidates:
            self.add(candidate)

    def own_places(self, first: int, last: int) -> int:
        """How many of the groups leased as number `first` to `last - 1` are this run's own.

        All, unless the policy mixes in groups of others: admission must know how long its queue is in steps.
        """
        return last - first

    def state_dict(self) -> dict[str, Any]:
        """What stored groups and leases do not tell, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from `state_dict`."""
        return
