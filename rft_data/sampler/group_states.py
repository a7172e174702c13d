"""The state of every group of a sampler, and the number of groups in each state.

It knows neither leases nor versions. It makes sure that no group is lost or counted twice.
"""

from __future__ import annotations

from collections import Counter

from rft_data.core.groups import GroupResult
from rft_data.core.words import ADMITTED, GroupOutcome, GroupState

_OUTSTANDING = (GroupState.OPEN, GroupState.READY, GroupState.LEASED)


class GroupStates:
    """States of the groups this run admitted, and of stored groups of others that it may train on."""

    def __init__(self) -> None:
        self.next_ordinal = 0
        """Ordinal of this run's next group."""
        self._states: dict[str, GroupState] = {}
        self._own: Counter[GroupState] = Counter()
        self._others: Counter[GroupState] = Counter()
        self._other_runs: set[str] = set()
        self._lost_ordinals: set[int] = set()
        """Ordinals below the next without a group: the process that held their tickets was killed."""
        self._repeated_ordinals = 0
        """Groups stored after a restart, when their ordinal had already been given to another group."""

    def state(self, group_id: str) -> GroupState | None:
        """The group's state; None if the group was never added."""
        return self._states.get(group_id)

    def open(self, group_id: str) -> None:
        """Add a group of this run for which a ticket was given; it gets the next ordinal."""
        self.next_ordinal += 1
        self.move(group_id, GroupState.OPEN)

    def enter_own(self, group_id: str, ordinal: int, state: GroupState) -> None:
        """Add a stored group of this run."""
        self._repeated_ordinals += ordinal < self.next_ordinal and ordinal not in self._lost_ordinals
        self.reach(ordinal + 1)
        self._lost_ordinals.discard(ordinal)
        self.move(group_id, state)

    def enter_other(self, group_id: str, state: GroupState) -> None:
        """Add a group of another run."""
        self._other_runs.add(group_id)
        self.move(group_id, state)

    def reach(self, ordinal: int) -> None:
        """Raise the next ordinal to at least this one; skipped ones are lost until their groups are added."""
        self._lost_ordinals.update(range(self.next_ordinal, ordinal))
        self.next_ordinal = max(self.next_ordinal, ordinal)

    def move(self, group_id: str, state: GroupState) -> None:
        """Change a group's state."""
        counts = self._others if group_id in self._other_runs else self._own
        before = self._states.get(group_id)
        if before is not None:
            counts[before] -= 1
        counts[state] += 1
        self._states[group_id] = state

    @property
    def outstanding(self) -> int:
        """This run's groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        return sum(self._own[state] for state in _OUTSTANDING)

    @property
    def leased(self) -> int:
        """Groups in leases for the first time."""
        return self._own[GroupState.LEASED] + self._others[GroupState.LEASED]

    def conservation(self) -> dict[str, int]:
        """`admitted`: groups of this run and of others; then how many are in each state."""
        admitted = self.next_ordinal + self._repeated_ordinals + len(self._other_runs)
        counts: dict[str, int] = {state: self._own[state] + self._others[state] for state in GroupState}
        counts[GroupState.CANCELLED] += len(self._lost_ordinals)
        return {ADMITTED: admitted, **counts}


def arrival_state(result: GroupResult) -> GroupState:
    """The state of a group that arrived with this result, before any lease."""
    if result.outcome == GroupOutcome.AWAITING:
        return GroupState.OPEN
    if result.outcome != GroupOutcome.ARRIVED:
        return GroupState.FAILED if result.outcome == GroupOutcome.FAILED else GroupState.CANCELLED
    return GroupState.READY if result.seqs else GroupState.DROPPED
