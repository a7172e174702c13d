"""Two arms of a fleet: one explorer is pinned to older weights, and a share of the groups is its.

It says which version the pinned explorer serves and keeps its folder, whose turn the next group is, and what
the groups of each arm earned. Nothing is loaded or played here.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from rft_data.core.arms import Arm
from rft_data.core.groups import Assignment, GroupResult
from rft_data.core.rows import WeightRef
from rft_data.core.words import GroupOutcome
from rft_data.loop.member import Member
from rft_data.weights.versions import VersionRegistry


class Arms:
    """The arms of one run's explorers."""

    def __init__(self, pinned: str, share: float, steps_behind: int, versions: VersionRegistry) -> None:
        """Keep the folders of the versions that are on disk, until the pinned explorer needs them no more.

        Args:
            pinned: name of the explorer of the arm `old`; all others are of the arm `new`.
            share: most of the groups, as a fraction, that the arm `old` is given.
            steps_behind: optimizer steps between the pinned explorer's weights and the newest.
        """
        self._pinned = pinned
        self._share = share
        self._steps_behind = steps_behind
        self._versions = versions
        self._kept: list[WeightRef] = []
        """Weights that the pinned explorer serves now or will serve later, in order of publication."""
        for ref in versions.published():
            self._keep(ref)
        self._newest: WeightRef | None = None
        self._oldest: WeightRef | None = None
        """Weights that the pinned explorer is to serve."""
        self._given: Counter[Arm] = Counter()
        self._arm_of: dict[str, Arm] = {}
        """The arm of each group under way, by the id of the group."""
        self._rewards: dict[Arm, list[float]] = {arm: [] for arm in Arm}

    def arm(self, member: Member) -> Arm:
        """The arm that an explorer belongs to."""
        return Arm.OLD if member.role.name == self._pinned else Arm.NEW

    def publish(self, ref: WeightRef) -> None:
        """Take in the newest weights, and choose those of the pinned explorer.

        They are the newest version at least `steps_behind` steps behind, or the oldest there is.
        """
        self._keep(ref)
        known = [one for one in self._kept if one.step <= ref.step]  # a resume may go back some steps
        bound = max(ref.step - self._steps_behind, min(one.step for one in known))
        chosen = max((one for one in known if one.step <= bound), key=_age)
        for one in self._kept:
            if one not in known or _age(one) < _age(chosen):
                self._versions.let_go(one.version)
        self._kept = [one for one in known if _age(one) >= _age(chosen)]
        self._newest, self._oldest = ref, chosen

    def wanted(self, member: Member) -> WeightRef | None:
        """The weights that an explorer is to serve; None before the first publication."""
        return self._oldest if self.arm(member) is Arm.OLD else self._newest

    def turn(self, members: Sequence[Member]) -> tuple[int, Arm] | None:
        """The version and the arm that get the next group; None when no explorer of that arm serves.

        The arm `old` is due while it was given less than its share of all groups and plays less than that
        share of those under way, rounded up (its clients may be late). While its explorer serves nothing, the
        others play.
        """
        load = {arm: sum(one.load for one in members if self.arm(one) is arm) for arm in Arm}
        serving = {
            arm: [one.version for one in members if self.arm(one) is arm and one.stays and one.version >= 0]
            for arm in Arm
        }
        due = self._given[Arm.OLD] < self._share * (self._given.total() + 1)
        late = load[Arm.OLD] >= math.ceil(self._share * (sum(load.values()) + 1))
        arm = Arm.OLD if due and not late and serving[Arm.OLD] else Arm.NEW
        return (max(serving[arm]), arm) if serving[arm] else None

    def gave(self, arm: Arm, assignments: Sequence[Assignment]) -> None:
        """These groups are played by explorers of this arm."""
        self._given[arm] += len(assignments)
        self._arm_of |= {one.ticket.group_id: arm for one in assignments}

    def observe(self, result: GroupResult) -> None:
        """Count the mean reward of a group that arrived; rollouts without a reward do not count."""
        arm = self._arm_of.pop(result.ticket.group_id, None)
        known = [reward for reward in result.rewards if reward is not None]
        if arm is not None and known and result.outcome == GroupOutcome.ARRIVED:
            self._rewards[arm].append(statistics.fmean(known))

    def take_rewards(self) -> Mapping[str, Sequence[float]]:
        """The mean rewards of the groups of each arm that arrived since the last call."""
        taken, self._rewards = self._rewards, {arm: [] for arm in Arm}
        return {str(arm): means for arm, means in taken.items()}

    def _keep(self, ref: WeightRef) -> None:
        if ref not in self._kept:
            self._versions.hold(ref.version)
            self._kept.append(ref)


def _age(ref: WeightRef) -> tuple[int, int]:
    return ref.step, ref.version
