"""Exploring: tickets out to explorers, groups home to the buffer's books.

Starts what it is given room for, judges what comes home, and accounts for what was lost. Whether there is
room, and what is trained, is the loop's business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rft_data.buffer import Buffer
from rft_data.core.failpoints import failpoint
from rft_data.core.protocols import Pipeline, Sampler
from rft_data.core.rows import Assignment, Played
from rft_data.loop.closing import judge, unjudged
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.fleet import Fleet
from rft_data.sampler.awaiting import Awaiting
from rft_data.sampler.ledger import Ledger


@dataclass
class Exploring:
    """The way of a group from admission to its place in the books."""

    buffer: Buffer
    ledger: Ledger
    sampler: Sampler
    dispatcher: Dispatcher
    fleet: Fleet
    pipeline: Pipeline
    least_members: int
    """Fewest rollouts of a group that may be trained on."""
    awaiting: Awaiting | None = None
    """Keeps groups whose rewards come later; None: every group is judged when it is home."""
    closed: int = 0
    """Groups that came home, lost ones aside; the loop counts from where it likes."""
    last_error: str = ""
    """Why the last failed group failed."""
    judge_s: float = 0.0
    """Seconds spent judging."""
    rewards: list[tuple[float | None, ...]] = field(default_factory=list)
    """Of the groups that arrived, per rollout; taken by whoever logs."""

    def start(self, room: int) -> None:
        """Start at most `room` groups, as many as the sampler admits on the versions that are served."""
        for version in self.fleet.versions():
            tickets = self.sampler.admit(room, version) if room > 0 else []
            if tickets:
                self.fleet.play(self.dispatcher.assign(tickets), version)
                failpoint("explore.started")
                room -= len(tickets)

    @property
    def waiting(self) -> int:
        """Groups at home whose rewards are to come; their tickets are out until then."""
        return 0 if self.awaiting is None else len(self.awaiting)

    def collect(self) -> None:
        """Take in whatever has come home, or has waited there long enough.

        Raises: what an explorer raised that starting it again does not mend.
        """
        played, lost = self.fleet.collect()
        if lost:
            played += self._salvage(lost)
        if self.awaiting is not None:
            played = self.awaiting.sift(played)
        if played:
            self._arrive(played)

    def take_rewards(self) -> list[tuple[float | None, ...]]:
        """The rewards of the groups that arrived since the last call."""
        taken, self.rewards = self.rewards, []
        return taken

    def _arrive(self, played: Sequence[Played]) -> None:
        """Judge groups whose rows are stored, and only then close their tickets."""
        began = time.perf_counter()
        rows = self.buffer.take([seq for group in played for seq in group.seqs])
        if self.awaiting is not None:
            rows = self.awaiting.with_rewards(rows)
        of_run = self.ledger.run_id, self.ledger.attempt
        results = judge(played, rows, self.pipeline, self.buffer, *of_run)
        self.judge_s += time.perf_counter() - began
        self.last_error = next((g.error for g in reversed(played) if g.error), self.last_error)
        for result in results:
            self.sampler.close(result)
            self.dispatcher.close(result.ticket)
            self.closed += result.outcome != "cancelled"
            if result.outcome == "arrived":
                self.rewards.append(result.rewards)
        self.dispatcher.selector.observe([r for r in results if not self.sampler.is_stale(r)])

    def _salvage(self, lost: Sequence[Assignment]) -> list[Played]:
        """What an explorer that died had stored; the tasks of the rest are played again."""
        tasks = {a.task.key for a in lost}
        found = unjudged(self.buffer, self.ledger.run_id, self.least_members, tasks)
        stored = {group.ticket.group_id: group for group in found}
        played = [_salvaged(a, stored.get(a.ticket.group_id)) for a in lost]
        self.dispatcher.give_back([group.task for group in played if group.outcome == "cancelled"])
        return played


def _salvaged(lost: Assignment, stored: Played | None) -> Played:
    ticket, task = lost.ticket, lost.task.key
    if stored is None:
        return Played(ticket, task, "cancelled", (), 0, "its explorer died")
    why = "" if stored.outcome == "arrived" else "its explorer died"
    return Played(ticket, task, stored.outcome, stored.seqs, stored.rows, why)
