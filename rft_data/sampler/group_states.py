"""Where every group of a sampler is: one state each, and the counts per state.

It does not know leases or versions; it only refuses to lose or invent a group.
"""

from __future__ import annotations

from collections import Counter

from rft_data.core.words import ADMITTED, GroupOutcome, GroupState

AWAITING = GroupOutcome.AWAITING
_OUTSTANDING = (GroupState.OPEN, GroupState.READY, GroupState.LEASED)


class Book:
    """States of the groups this run admitted, and of stored groups of others that it may train on."""

    def __init__(self) -> None:
        self.next_ordinal = 0
        """Ordinal of this run's next group."""
        self._states: dict[str, GroupState] = {}
        self._own: Counter[GroupState] = Counter()
        self._others: Counter[GroupState] = Counter()
        self._strangers: set[str] = set()
        self._lost: set[int] = set()
        """Ordinals below the next that no group was entered for: their tickets died with their process."""
        self._twice = 0
        """Groups whose ordinal had been given again, because they were stored after the restart."""

    def state(self, group_id: str) -> GroupState | None:
        """The group's state; None if it was never entered."""
        return self._states.get(group_id)

    def open(self, group_id: str) -> None:
        """Enter a group of this run that a ticket was given for, with the next ordinal."""
        self.next_ordinal += 1
        self.move(group_id, GroupState.OPEN)

    def enter_own(self, group_id: str, ordinal: int, state: GroupState) -> None:
        """Enter a stored group of this run."""
        self._twice += ordinal < self.next_ordinal and ordinal not in self._lost
        self.reach(ordinal + 1)
        self._lost.discard(ordinal)
        self.move(group_id, state)

    def enter_other(self, group_id: str, state: GroupState) -> None:
        """Enter a group of another run."""
        self._strangers.add(group_id)
        self.move(group_id, state)

    def reach(self, ordinal: int) -> None:
        """Let the next ordinal be at least this one; those passed over are lost until their groups come."""
        self._lost.update(range(self.next_ordinal, ordinal))
        self.next_ordinal = max(self.next_ordinal, ordinal)

    def move(self, group_id: str, state: GroupState) -> None:
        """Change a group's state."""
        counts = self._others if group_id in self._strangers else self._own
        before = self._states.get(group_id)
        if before is not None:
            counts[before] -= 1
        counts[state] += 1
        self._states[group_id] = state

    @property
    def outstanding(self) -> int:
        """This run's groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        return sum(self._own[state] for state in _OUTSTANDING)

    def conservation(self) -> dict[str, int]:
        """`admitted`: groups of this run and of others; then how many are in each state."""
        admitted = self.next_ordinal + self._twice + len(self._strangers)
        counts: dict[str, int] = {state: self._own[state] + self._others[state] for state in GroupState}
        counts[GroupState.CANCELLED] += len(self._lost)
        return {ADMITTED: admitted, **counts}
