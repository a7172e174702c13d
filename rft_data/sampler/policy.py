"""A policy decides the order in which groups are leased, and nothing else.

The sampler (`group_sampler.py`) handles admission, states, leases and staleness, so a policy cannot lose
a group, lease one twice or break the staleness bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft_data.core.groups import GroupResult


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
    """Facts about the lease for which a policy chooses groups."""

    lease: int
    """The lease's step. A random policy uses it as seed, so that a second call chooses the same groups."""
    step: int
    """Optimizer steps that will be behind the weights when the lease is trained."""
    groups_per_step: int
    max_staleness: int | None
    """The bound of a group's first use, in optimizer steps; None for none."""
    inserted: int
    """Groups that ever arrived with rows that training may use."""
    in_flight: int
    """Groups in leases that are not settled yet."""
    fresh_in_flight: int
    """Groups in flight that were never trained before."""
    reuses: int
    """Uses of groups beyond each one's first, leases in flight included."""


class Policy(ABC):
    """The order of leasing; derive from it for one of your own.

    After a restart the sampler repeats all calls in admission order, from stored groups and leases, so
    most policies have no state to save.
    """

    max_uses = 1
    """The largest `limit` of any group; the ledger must allow as many."""
    reuse_window: int | None = None
    """Optimizer steps after its weights in which a group may be trained again; None: `max_staleness`."""

    def limit(self, candidate: Candidate) -> int:
        """In how many steps this group may be trained."""
        return self.max_uses

    def opened(self, place: int, step: int) -> None:
        """A ticket was given; `step`: optimizer steps behind the engine's weights."""
        return

    def closed(self, place: int) -> None:
        """The ticket was closed, with any outcome; `add` is called next if its group may be leased."""
        return

    @abstractmethod
    def add(self, candidate: Candidate) -> None:
        """The group may be leased: it arrived, or it was trained and may be trained again."""

    @abstractmethod
    def discard(self, candidate: Candidate) -> None:
        """The group may not be leased (for now); no error when it was not added."""

    @abstractmethod
    def choose(self, n: int, moment: Moment) -> list[Candidate]:
        """The next groups to lease, in lease order: at most n, fewer when the order requires to wait.

        Changes nothing: `taken` is called once the lease is stored.
        """

    def taken(self, candidates: Sequence[Candidate]) -> None:
        """These groups were leased."""
        for candidate in candidates:
            self.discard(candidate)

    def returned(self, candidates: Sequence[Candidate]) -> None:
        """Their lease was released without training."""
        for candidate in candidates:
            self.add(candidate)

    def own_places(self, first: int, last: int, moment: Moment) -> int:
        """How many of the groups leased as number `first` to `last - 1` are this run's own, never trained.

        All, unless the policy mixes in groups of other runs or takes groups again. Admission uses it to count
        its queue in steps. `first` is the number after those of settled leases; `moment` is the next lease's.
        """
        return last - first

    def state_dict(self) -> dict[str, object]:
        """State that cannot be read from stored groups and leases, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from `state_dict`."""
        return
