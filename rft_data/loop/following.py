"""Groups that another run explores while this one trains on them: they come from the shared buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rft_data.core.groups import GroupResult
from rft_data.core.words import GroupOutcome
from rft_data.loop.closing import stored_groups
from rft_data.loop.exploring import Exploring
from rft_data.sampler.group_sampler import GroupSampler


@dataclass
class Following(Exploring):
    """Exploring by another run: nothing is started here, and what arrives is closed already."""

    planned: int = 0
    """Groups that the other run plays in all, without those that it cancels."""
    _known: dict[str, int] = field(default_factory=dict, init=False)
    """Ordinal of each group seen, by its id."""
    _played: int = field(default=0, init=False)
    _rows: int = field(default=-1, init=False)
    """Rows of `groups` in the buffer when it was last read."""

    def know(self, groups: Sequence[GroupResult]) -> None:
        """Count groups that the sampler has."""
        for group in groups:
            self._known[group.ticket.group_id] = group.ticket.ordinal
            self._played += group.outcome != GroupOutcome.CANCELLED

    @property
    def waiting(self) -> int:
        """Groups that the other run has still to play."""
        return max(0, self.planned - self._played)

    def collect(self, missing: int = 0) -> None:
        """Add the groups that the other run has closed since the last call; `missing` changes nothing."""
        buffer = self.closer.buffer
        if (rows := buffer.counts()["groups"]) == self._rows:
            return
        self._rows = rows
        found = stored_groups(buffer, self.closer.run_id, self._first_missing())
        fresh = [group for group in found if group.ticket.group_id not in self._known]
        self.know(fresh)
        assert isinstance(self.sampler, GroupSampler)  # noqa: S101 - for the type checker
        self.sampler.add(fresh)
        for group in fresh:
            self.closed += group.outcome != GroupOutcome.CANCELLED
            if group.outcome == GroupOutcome.ARRIVED:
                self.rewards.append(group.rewards)

    def _first_missing(self) -> int:
        """The lowest ordinal of which no group was seen."""
        seen = set(self._known.values())
        return next(ordinal for ordinal in range(len(seen) + 1) if ordinal not in seen)
