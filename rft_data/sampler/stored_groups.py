"""The groups that a buffer holds already, entered into a sampler's states when it starts or follows a run."""

from __future__ import annotations

import re

from rft_data.core.groups import GroupResult
from rft_data.core.words import GroupState
from rft_data.sampler.gauges import Gauges
from rft_data.sampler.group_states import arrival_state
from rft_data.sampler.groups import Groups
from rft_data.sampler.interfaces import History, LeaseLedger, Versions


class StoredGroups:
    """Enters groups of this run, which count against its admission bound, and of other runs, which do not."""

    def __init__(
        self, groups: Groups, gauges: Gauges, *, ledger: LeaseLedger, versions: Versions, consumer: str
    ) -> None:
        self._groups = groups
        self._gauges = gauges
        self._ledger = ledger
        self._versions = versions
        self._consumer = consumer
        self._own_id = re.compile(re.escape(ledger.run_id) + r"/\d+-\d+")

    def add(self, history: History) -> int:
        """Add groups that are not known yet; `settled_steps` counts as their step of arrival (not stored).

        Returns: the first round of this run after all of theirs; 0 where none is of this run.
        """
        retired = self._ledger.retired(self._consumer)
        leased = {group_id for lease in self._ledger.leases(self._consumer) for group_id in lease.group_ids}
        rounds = 0
        for result in sorted(history.groups, key=self._order):
            group_id, state = result.ticket.group_id, arrival_state(result)
            if self._groups.states.state(group_id) is not None:
                continue
            if state == GroupState.READY and group_id in retired and group_id not in leased:
                state = GroupState.STALE if retired[group_id] == GroupState.STALE else GroupState.CANCELLED
            step = None
            if self._is_from_this_run(result):
                rounds = max(rounds, result.ticket.round + 1)
                step = self._enter_own(result, state)
            else:
                self._groups.states.enter_other(group_id, state)
            if state == GroupState.READY:
                self._groups.offer(result, self._groups.place(), step, max(history.settled_steps, step or 0))
            self._groups.inserted += state == GroupState.STALE
        return rounds

    def _enter_own(self, result: GroupResult, state: GroupState) -> int | None:
        """Enter a group of this run.

        Returns: optimizer steps behind the weights that sampled it; None where it cannot be trained any more.
        """
        group_id = result.ticket.group_id
        self._groups.states.enter_own(group_id, result.ticket.ordinal, state)
        waits = state in (GroupState.OPEN, GroupState.READY)
        step = self._versions.optimizer_step(result.version_min) if waits else None
        if state == GroupState.OPEN:
            self._groups.expect(group_id, step or 0)
        else:
            self._gauges.closed(result)
        return step

    def _is_from_this_run(self, result: GroupResult) -> bool:
        return self._own_id.fullmatch(result.ticket.group_id) is not None

    def _order(self, result: GroupResult) -> tuple[bool, str, int]:
        """Groups of other runs first, each run's in order of admission."""
        own = self._is_from_this_run(result)
        run = "" if own else result.ticket.group_id.rpartition("/")[0]
        return own, run, result.ticket.ordinal
