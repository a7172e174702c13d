"""The version-aware sampler: what may start, what trains next, and where every group is meanwhile.

Admission and leasing share one book, so what was admitted is always accounted for. A policy only decides
the order. Nothing is saved that stored groups and leases tell. Not for use from many threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rft_data.core.errors import ConflictError
from rft_data.core.rows import GroupResult, Lease, Ticket
from rft_data.core.words import ADMITTED, GroupOutcome, GroupState
from rft_data.sampler.gauges import Gauges
from rft_data.sampler.groups import Stock
from rft_data.sampler.interfaces import Books, Versions
from rft_data.sampler.policy import Moment, Policy

_HANDED_OUT = (GroupState.LEASED, GroupState.TRAINED)
_LOST = (GroupState.STALE, GroupState.FAILED, GroupState.CANCELLED)


class GroupSampler:
    """The sampler of one consumer.

    Admission is relative (no absolute version enters): a ticket is given while
    `lag(engine) + outstanding // groups_per_step <= max_staleness`, where lag counts optimizer steps
    between the engine's weights and the newest, and outstanding groups are those open, ready or leased.
    A group admitted behind `outstanding` others is trained after `outstanding // groups_per_step` steps if
    nobody overtakes it, so under a policy that keeps the order none grows too old. A dropped, failed or
    stale group frees its place at once, which is how dynamic sampling (DAPO, arXiv:2503.14476) gets its
    refill. Whatever the policy, a lease is preceded by a sweep that takes out what is past the bound.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        ledger: Books,
        versions: Versions,
        consumer: str,
        groups_per_step: int,
        max_staleness: int | None,
        history: Sequence[GroupResult] = (),
        settled_steps: int = 0,
    ) -> None:
        """Rebuild the book from `history`: stored groups of this run, and of others that may be trained on.

        A group of this run whose outcome there is `awaiting` is open, as it was before the restart.
        Groups leased for a step below `settled_steps` are trained; leases from there on will be
        redelivered, because the checkpoint the run resumes from does not hold them.
        """
        self._policy = policy
        self._ledger = ledger
        self._versions = versions
        self._consumer = consumer
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._own_id = re.compile(re.escape(ledger.run_id) + r"/\d+-\d+")
        self._stock = Stock(policy)
        self._gauges = Gauges()
        self._rounds = 0
        self._take_in(history, settled_steps)
        for lease in sorted(ledger.leases(consumer), key=lambda lease: lease.step):
            self._stock.hold(lease, lease.step)
            if lease.step < settled_steps:
                self._gauges.trained(self._stock.finish(lease.step))

    # --- admission ---------------------------------------------------------------------------------

    def admit(self, n: int, engine_version: int) -> list[Ticket]:
        """At most n tickets for new groups on an engine of this version, as many as the bound allows now."""
        step = self._versions.step_of(engine_version)
        room = self._room(step)
        tickets = []
        for _ in range(n if room is None else min(n, room)):
            ordinal = self.admitted
            group_id = f"{self._ledger.run_id}/{self._ledger.attempt}-{ordinal:08d}"
            self._stock.open(group_id, step)
            tickets.append(Ticket(group_id, ordinal, engine_version, self._rounds))
        self._rounds += bool(tickets)
        return tickets

    def _room(self, engine_step: int) -> int | None:
        """How many groups may start on weights of so many optimizer steps; None for any number."""
        if self._max_staleness is None:
            return None
        steps = self._max_staleness - (self._now() - engine_step) + 1
        first = self._stock.settled_groups
        last = first + max(0, steps) * self._groups_per_step
        return self._policy.own_places(first, last) - self.outstanding

    def close(self, result: GroupResult) -> None:
        """Account for a ticket.

        Raises: ConflictError if its group is not open (closed twice, or never admitted).
        """
        group_id = result.ticket.group_id
        before = self._stock.book.state(group_id)
        if before != GroupState.OPEN:
            raise ConflictError(
                f"group '{group_id}' is {before or 'unknown'}, not open; every ticket is closed exactly once."
            )
        state = _arrival_state(result)
        step = self._versions.step_of(result.version_min) if state == GroupState.READY else None
        place = self._stock.close(group_id, state)
        self._gauges.closed(result)
        if state == GroupState.READY:
            self._stock.offer(result, place, step, self._now())

    def is_stale(self, result: GroupResult) -> bool:
        """Whether the weights a group was sampled with are past the bound by now."""
        if self._max_staleness is None:
            return False
        return self._now() - self._versions.step_of(result.version_min) > self._max_staleness

    # --- leases ------------------------------------------------------------------------------------

    def lease(self, consumer: str, step: int, n_groups: int, version: int) -> Lease | None:
        """The next n groups in the policy's order for one step, or None when it has not that many now.

        Groups past the staleness bound are swept first: never trained, counted as stale.
        Asked again for the same step, the same lease comes back.
        Raises: ConflictError for another consumer than this sampler's.
        """
        if consumer != self._consumer:
            raise ConflictError(
                f"'{consumer}' asked the sampler of '{self._consumer}' for a lease; each has its own."
            )
        moment = self._moment(step)
        known = self._ledger.find(consumer, step)
        if known is not None:
            if step not in self._stock.held and step not in self._stock.settled:
                self._stock.hold(known, moment.step)  # granted by a call that failed after the write
            return known
        if step in self._stock.held:
            self._stock.give_back(step)  # released by a call that failed after the write
        self._sweep(moment.step)
        chosen = self._policy.choose(n_groups, moment)
        if len(chosen) < n_groups:
            return None
        lease = self._ledger.grant(consumer, step, version, [candidate.result for candidate in chosen])
        self._stock.hold(lease, moment.step)
        return lease

    def settle(self, lease: Lease) -> None:
        """The lease's gradient step has been taken. Call it after the step's version was issued, or with
        no admission between the two: a place may be given again only when the lag has grown.

        Raises: ConflictError if the lease, or a group of it, is not held.
        """
        held = self._stock.held.get(lease.step)
        states = {group_id: self._stock.book.state(group_id) for group_id in lease.group_ids}
        lost = next((name for name, state in states.items() if state not in _HANDED_OUT), None)
        if held is None or lost or not self._is_same(held.lease, lease):
            what = f"group '{lost}' is {states[lost] or 'unknown'}" if lost else "it was settled or released"
            raise ConflictError(
                f"lease {lease.consumer}/{lease.step} is not held: {what}; settle a lease once."
            )
        trained = self._stock.finish(lease.step)
        self._gauges.trained(trained)
        self._gauges.used(trained, held.step)

    def release(self, lease: Lease, reason: str) -> None:
        """Give a lease back untrained: its groups are ready again, in their old order.

        Raises: ConflictError if it is not the step's present lease, or was trained.
        """
        held = self._stock.held.get(lease.step)
        known = self._ledger.find(self._consumer, lease.step)
        if held is None or not all(self._is_same(lease, one) for one in (held.lease, known) if one):
            raise ConflictError(
                f"lease {lease.consumer}/{lease.step} is not held any more; only a lease that was not "
                "trained can be released, once."
            )
        self._ledger.release(lease, reason)
        self._stock.give_back(lease.step)

    # --- what is where -----------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """This run's groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        return self._stock.book.outstanding

    @property
    def ready(self) -> int:
        """Groups a lease could have now, up to `groups_per_step`; those past the bound not yet swept."""
        step = max([*self._stock.held, *self._stock.settled], default=-1) + 1
        return len(self._policy.choose(self._groups_per_step, self._moment(step)))

    @property
    def admitted(self) -> int:
        """Tickets this run has given, over all its starts: the ordinal of the next one."""
        return self._stock.book.next_ordinal

    def conservation(self) -> dict[str, int]:
        """Groups in the book, and how many are in each state; `admitted` is the sum of the others.

        A group that is trained again stays `trained`, also while its further leases are in flight.
        """
        return self._stock.book.conservation()

    def state_dict(self) -> dict[str, Any]:
        """What stored groups and leases do not tell: tickets that are open, and the policy's own state."""
        return {ADMITTED: self.admitted, "rounds": self._rounds, "policy": self._policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`: tickets that were open then and never came home are cancelled."""
        self._stock.book.reach(int(state[ADMITTED]))
        self._rounds = max(self._rounds, int(state["rounds"]))
        self._policy.load_state_dict(state["policy"])

    def metrics(self) -> dict[str, float]:
        """Numbers for the run's log: see `Gauges.read`; counts of groups; ages in optimizer steps."""
        mean, largest = self._stock.shelf.ages(self._now())
        counts = self.conservation()
        return {
            "outstanding": float(self.outstanding),
            "reuses": float(self._stock.reuses),
            "queue_age_mean": mean,
            "queue_age_max": largest,
            **{f"dropped/{state}": float(counts[state]) for state in _LOST},
            **self._gauges.read(),
        }

    # --- inside ------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Optimizer steps behind the newest weights."""
        return self._versions.step_of(self._versions.latest)

    def _moment(self, lease_step: int) -> Moment:
        """What is true when this step is trained: every held lease before it comes first."""
        return Moment(
            lease=lease_step,
            step=self._now() + sum(step < lease_step for step in self._stock.held),
            groups_per_step=self._groups_per_step,
            max_staleness=self._max_staleness,
            inserted=self._stock.inserted,
            in_flight=self._stock.in_flight,
            reuses=self._stock.reuses,
        )

    def _sweep(self, step: int) -> None:
        """Take out what would be past the bound in a lease trained at `step`."""
        if self._max_staleness is None:
            return
        while late := self._stock.shelf.older_than(step - self._max_staleness):
            never_trained = sorted(candidate.group_id for candidate in late if candidate.uses == 0)
            if never_trained:
                self._ledger.retire(self._consumer, never_trained, GroupState.STALE)
            self._stock.expire(late)

    def _take_in(self, history: Iterable[GroupResult], now: int) -> None:
        """Enter closed groups; when they arrived is not known, so `now` optimizer steps count as it."""
        retired = self._ledger.retired(self._consumer)
        leased = {group_id for lease in self._ledger.leases(self._consumer) for group_id in lease.group_ids}
        for result in sorted(history, key=self._order):
            group_id, state = result.ticket.group_id, _arrival_state(result)
            if self._stock.book.state(group_id) is not None:
                continue
            if state == GroupState.READY and group_id in retired and group_id not in leased:
                state = GroupState.STALE if retired[group_id] == GroupState.STALE else GroupState.CANCELLED
            step = None
            if self._is_own(result):
                self._stock.book.enter_own(group_id, result.ticket.ordinal, state)
                self._rounds = max(self._rounds, result.ticket.round + 1)
                waits = state in (GroupState.OPEN, GroupState.READY)
                step = self._versions.step_of(result.version_min) if waits else None
                if state == GroupState.OPEN:
                    self._stock.expect(group_id, step or 0)
                else:
                    self._gauges.closed(result)
            else:
                self._stock.book.enter_other(group_id, state)
            if state == GroupState.READY:
                self._stock.offer(result, self._stock.place(), step, max(now, step or 0))

    def _is_same(self, lease: Lease, other: Lease) -> bool:
        """Whether two answers name one lease of this consumer; the epoch may have moved on."""
        named = (self._consumer, lease.step, lease.group_ids)
        return (lease.consumer, other.step, other.group_ids) == named

    def _is_own(self, result: GroupResult) -> bool:
        return self._own_id.fullmatch(result.ticket.group_id) is not None

    def _order(self, result: GroupResult) -> tuple[bool, str, int]:
        """Groups of other runs first, each run's in order of admission."""
        own = self._is_own(result)
        run = "" if own else result.ticket.group_id.rpartition("/")[0]
        return own, run, result.ticket.ordinal


def _arrival_state(result: GroupResult) -> GroupState:
    if result.outcome == GroupOutcome.AWAITING:
        return GroupState.OPEN
    if result.outcome != GroupOutcome.ARRIVED:
        return GroupState.FAILED if result.outcome == GroupOutcome.FAILED else GroupState.CANCELLED
    return GroupState.READY if result.seqs else GroupState.DROPPED
