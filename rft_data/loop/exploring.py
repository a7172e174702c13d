"""Exploring: explorers get tickets, groups arrive and are closed, sampler and selector observe the results.

It starts at most as many groups as the loop asks for, and accounts for groups that were lost. The loop
decides how many may start, and what is trained.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rft_data.core.failpoints import failpoint
from rft_data.core.groups import Assignment, GroupResult, Played
from rft_data.core.protocols import Sampler
from rft_data.core.words import GroupOutcome
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.fleet import Fleet

log = logging.getLogger(__name__)

GATHER_S, HURRY_S = 1.0, 0.1
"""Longest times, in seconds, that a group which arrived waits to be closed together with others.

The first holds while the trainer is at work, the second while it waits for groups. Closing costs two commits
and a pass of the operators, for one group nearly as much as for thirty.
"""


@dataclass
class Exploring:
    """The way of a group from admission to its outcome."""

    closer: GroupCloser
    sampler: Sampler
    dispatcher: Dispatcher
    fleet: Fleet
    repeats: dict[int, Sequence[Sequence[GroupResult]]] = field(default_factory=dict)
    """Rounds of steps that are trained again after a resume; each is repeated with its step."""
    closed: int = 0
    """Groups that arrived and were not cancelled; the loop resets the count."""
    last_error: str = ""
    """Error of the group that failed last."""
    judge_s: float = 0.0
    """Seconds spent closing groups."""
    rewards: list[tuple[float | None, ...]] = field(default_factory=list)
    """Rewards of the groups that arrived, per rollout; emptied by `take_rewards`."""
    arrived: list[Played] = field(default_factory=list)
    """Groups whose rows are stored, to be closed with the next ones; `resume` finds them after a kill."""
    _arrived_at: float = 0.0
    """`time.monotonic()` when the first of them was collected."""
    _gather_s: float = 0.0
    """How long it may wait."""

    def start(self, room: int) -> None:
        """Start at most `room` groups, as many as the sampler admits on the versions that are served.

        With arms, groups start one by one, each in its arm's turn. Otherwise the newer weights would take
        every place, because older ones are admitted later.
        """
        for version, arm in self.fleet.turns():
            tickets = self.sampler.admit(room if arm is None else 1, version) if room > 0 else []
            if tickets:
                self.fleet.play(self.dispatcher.assign(tickets), version, arm)
                failpoint("explore.started")
                room -= len(tickets)
            elif arm is not None:
                break

    def repeat(self, step: int) -> None:
        """Have the selector draw and observe again what was explored for a step that is trained again."""
        for round_ in self.repeats.pop(step, ()):
            drawn = self.dispatcher.assign([result.ticket for result in round_])
            if [one.task.key for one in drawn] != [result.task for result in round_]:
                log.warning(
                    "step %d was explored on other tasks than the selector draws now; this run goes on, but "
                    "not as it would have without the interruption",
                    step,
                )
            for result in round_:
                self.dispatcher.close(result.ticket)
            self.dispatcher.give_back([r.task for r in round_ if r.outcome == GroupOutcome.CANCELLED])
            self.dispatcher.selector.observe(round_)

    def ahead(self) -> list[str]:
        """Ids of the groups explored for steps that are still to be trained again."""
        return [
            result.ticket.group_id
            for rounds in self.repeats.values()
            for round_ in rounds
            for result in round_
        ]

    @property
    def waiting(self) -> int:
        """Groups waiting for delayed rewards; their tickets stay open until then."""
        return 0 if self.closer.awaiting is None else len(self.closer.awaiting)

    @property
    def under_way(self) -> int:
        """Groups that are being played, or arrived and are not closed yet."""
        return self.fleet.playing + len(self.arrived)

    def collect(self, missing: int = 0) -> None:
        """Close the groups that arrived, and those that have waited long enough for their rewards.

        While more are being played, groups are closed together (GATHER_S, HURRY_S).
        Args: missing: groups that a waiting trainer needs to go on; 0: no trainer waits.
        Raises: what an explorer raised, where starting it again does not help.
        """
        played, lost = self.fleet.collect()
        if lost:
            played += self._salvage(lost, "its explorer died")
        if handed_back := self.fleet.handed_back():
            played += self._salvage(handed_back, "its explorer left", blamed=False)
        if played and not self.arrived:
            self._arrived_at = time.monotonic()
        self.arrived += played
        self._gather_s = HURRY_S if missing else GATHER_S
        if not self._due(missing):
            return
        arrived, self.arrived = sorted(self.arrived, key=lambda group: group.ticket.ordinal), []
        if ready := self.closer.ready(arrived):
            self._arrive(ready)

    def _due(self, missing: int) -> bool:
        """Whether to close now what arrived."""
        if self.waiting or self.fleet.playing == 0 or 0 < missing <= len(self.arrived):
            return True
        return self.gathered_in_s <= 0

    @property
    def gathered_in_s(self) -> float:
        """Seconds until the groups that arrived are closed although others are still being played."""
        return self._arrived_at + self._gather_s - time.monotonic() if self.arrived else math.inf

    def take_rewards(self) -> list[tuple[float | None, ...]]:
        """The rewards of the groups that arrived since the last call."""
        taken, self.rewards = self.rewards, []
        return taken

    def _arrive(self, played: Sequence[Played]) -> None:
        """Close groups whose rows are stored, then their tickets."""
        began = time.perf_counter()
        results = self.closer.close(played)
        self.judge_s += time.perf_counter() - began
        self.last_error = next((g.error for g in reversed(played) if g.error), self.last_error)
        for result in results:
            self.sampler.close(result)
            self.dispatcher.close(result.ticket)
            self.closed += result.outcome != GroupOutcome.CANCELLED
            if self.fleet.arms is not None:
                self.fleet.arms.observe(result)
            if result.outcome == GroupOutcome.ARRIVED:
                self.rewards.append(result.rewards)
        self.dispatcher.selector.observe([r for r in results if not self.sampler.is_stale(r)])

    def _salvage(self, lost: Sequence[Assignment], why: str, *, blamed: bool = True) -> list[Played]:
        """The groups that an explorer had stored before it ended; the tasks of the others are played again.

        Args: why: the reason that the explorer ended. blamed: whether this counts against its tasks; a task
            that is lost again and again is given up.
        """
        found = self.closer.interrupted({assignment.task.key for assignment in lost})
        stored = {group.ticket.group_id: group for group in found}
        played = [_salvaged(a, stored.get(a.ticket.group_id), why) for a in lost]
        again = [group.task for group in played if group.outcome == GroupOutcome.CANCELLED]
        self.dispatcher.give_back(again, blamed=blamed)
        return played


def _salvaged(lost: Assignment, stored: Played | None, why: str) -> Played:
    ticket, task = lost.ticket, lost.task.key
    if stored is None:
        return Played(ticket, task, GroupOutcome.CANCELLED, (), 0, why)
    why = "" if stored.outcome == GroupOutcome.ARRIVED else why
    return Played(ticket, task, stored.outcome, stored.seqs, stored.rows, why)
