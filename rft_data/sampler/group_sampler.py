"""The sampler: which groups may start, which train next, and the state of each of them.

Admission and leasing share the same group states, so every admitted group is accounted for. A policy only
decides the order. Whatever stored groups and leases tell is not saved again. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.errors import ConflictError
from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.words import ADMITTED, GroupState
from rft_data.sampler.gauges import Gauges
from rft_data.sampler.group_states import arrival_state
from rft_data.sampler.groups import Groups
from rft_data.sampler.interfaces import NEW_RUN, History, LeaseLedger, Versions
from rft_data.sampler.policy import Moment, Policy
from rft_data.sampler.stored_groups import StoredGroups

_LEASED_OR_TRAINED = (GroupState.LEASED, GroupState.TRAINED)
_UNTRAINED = (GroupState.STALE, GroupState.FAILED, GroupState.CANCELLED)


class GroupSampler:
    """The sampler of one consumer.

    Admission is relative (no absolute version enters): a ticket is given while
    `lag(engine) + outstanding // groups_per_step <= max_staleness`, where lag counts optimizer steps
    between the engine's weights and the newest, and outstanding groups are those open, ready or leased.
    A group admitted behind `outstanding` others is trained after `outstanding // groups_per_step` steps if
    no other group overtakes it, so under a policy that keeps the order no group grows too old. A dropped,
    failed or stale group frees its place at once; dynamic sampling (DAPO, arXiv:2503.14476) refills that
    way. Under every policy, groups past the bound are removed before each lease. A policy that takes groups
    again has a bound of its own for that (`reuse_window`), and admits fewer new ones.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        ledger: LeaseLedger,
        versions: Versions,
        consumer: str,
        groups_per_step: int,
        max_staleness: int | None,
        history: History = NEW_RUN,
    ) -> None:
        """Rebuild the group states from `history` and from the ledger's leases."""
        self._policy = policy
        self._ledger = ledger
        self._versions = versions
        self._consumer = consumer
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._groups = Groups(policy)
        self._gauges = Gauges()
        self._stored = StoredGroups(
            self._groups, self._gauges, ledger=ledger, versions=versions, consumer=consumer
        )
        self._rounds = self._stored.add(history)
        for lease in sorted(ledger.leases(consumer), key=lambda lease: lease.step):
            self._groups.hold(lease, lease.step)
            if lease.step < history.settled_steps:
                self._gauges.trained(self._groups.finish(lease.step))

    # --- admission ---------------------------------------------------------------------------------

    def admit(self, n: int, engine_version: int) -> list[Ticket]:
        """Tickets for new groups on an engine of this version: at most n, as far as the bound allows."""
        step = self._versions.optimizer_step(engine_version)
        room = self._room(step)
        tickets = []
        for _ in range(n if room is None else min(n, room)):
            ordinal = self.admitted
            group_id = f"{self._ledger.run_id}/{self._ledger.attempt}-{ordinal:08d}"
            self._groups.open(group_id, step)
            tickets.append(Ticket(group_id, ordinal, engine_version, self._rounds))
        self._rounds += bool(tickets)
        return tickets

    def _room(self, engine_step: int) -> int | None:
        """Groups that may start on weights of `engine_step` optimizer steps; None without a bound."""
        if self._max_staleness is None:
            return None
        steps = self._max_staleness - (self._now() - engine_step) + 1
        first = self._groups.settled_groups
        # a held lease is a step of its own also when it went ahead with fewer groups: it may not be filled up
        free = steps - len(self._groups.held)
        last = first + self._groups.in_flight + free * self._groups_per_step
        return self._policy.own_places(first, last, self._next_moment()) - self.outstanding

    def close(self, result: GroupResult) -> None:
        """Close the ticket of a group with its result.

        Raises: ConflictError if its group is not open (closed twice, or never admitted).
        """
        group_id = result.ticket.group_id
        before = self._groups.states.state(group_id)
        if before != GroupState.OPEN:
            raise ConflictError(
                f"group '{group_id}' is {before or 'unknown'}, not open; every ticket is closed exactly once."
            )
        state = arrival_state(result)
        step = self._versions.optimizer_step(result.version_min) if state == GroupState.READY else None
        place = self._groups.close(group_id, state)
        self._gauges.closed(result)
        if state == GroupState.READY:
            self._groups.offer(result, place, step, self._now())

    def add(self, results: Sequence[GroupResult]) -> None:
        """Add groups that another process of this run has closed; those known already stay as they are."""
        self._rounds = max(self._rounds, self._stored.add(History(results, settled_steps=self._now())))

    def is_stale(self, result: GroupResult) -> bool:
        """Whether the weights that sampled a group are past the staleness bound now."""
        if self._max_staleness is None:
            return False
        return self._now() - self._versions.optimizer_step(result.version_min) > self._max_staleness

    # --- leases ------------------------------------------------------------------------------------

    def lease(self, consumer: str, step: int, n_groups: int, version: int) -> Lease | None:
        """The next n groups in the policy's order for one step; None if fewer than n are ready.

        Groups past the staleness bound are removed first; they are never trained and count as stale.
        A second call for the same step returns the same lease.
        Raises: ConflictError for another consumer than this sampler's.
        """
        if consumer != self._consumer:
            raise ConflictError(
                f"consumer '{consumer}' asked the sampler of consumer '{self._consumer}' for a lease; "
                "ask the sampler that was made for it."
            )
        moment = self._moment(step)
        known = self._ledger.find(consumer, step)
        if known is not None:
            if step not in self._groups.held and step not in self._groups.settled:
                self._groups.hold(known, moment.step)  # granted by a call that failed after the write
            return known
        if step in self._groups.held:
            self._groups.give_back(step)  # released by a call that failed after the write
        self._sweep(moment.step)
        chosen = self._policy.choose(n_groups, moment)
        if len(chosen) < n_groups:
            return None
        lease = self._ledger.grant(consumer, step, version, [candidate.result for candidate in chosen])
        self._groups.hold(lease, moment.step)
        return lease

    def settle(self, lease: Lease) -> None:
        """Close a lease whose gradient step was taken.

        Call it after the step's version was issued, or at least admit no group between the two: a freed
        place may be given again only after the lag has grown.

        Raises: ConflictError if the lease, or a group of it, is not held.
        """
        held = self._groups.held.get(lease.step)
        states = {group_id: self._groups.states.state(group_id) for group_id in lease.group_ids}
        lost = next((name for name, state in states.items() if state not in _LEASED_OR_TRAINED), None)
        if held is None or lost or not self._is_same(held.lease, lease):
            what = f"group '{lost}' is {states[lost] or 'unknown'}" if lost else "it was settled or released"
            raise ConflictError(
                f"lease {lease.consumer}/{lease.step} is not held: {what}; settle a lease once."
            )
        trained = self._groups.finish(lease.step)
        self._gauges.trained(trained)
        self._gauges.used(trained, held.step)

    def release(self, lease: Lease, reason: str) -> None:
        """End a lease without training it; its groups are ready again, in their old order.

        Raises: ConflictError if it is not the step's present lease, or was trained.
        """
        held = self._groups.held.get(lease.step)
        known = self._ledger.find(self._consumer, lease.step)
        if held is None or not all(self._is_same(lease, one) for one in (held.lease, known) if one):
            raise ConflictError(
                f"lease {lease.consumer}/{lease.step} is not held any more; only a lease that was not "
                "trained can be released, once."
            )
        self._ledger.release(lease, reason)
        self._groups.give_back(lease.step)

    # --- counts and state --------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """This run's groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        return self._groups.states.outstanding

    @property
    def ready(self) -> int:
        """Groups that may be leased now, at most `groups_per_step`; may include groups past the bound."""
        return len(self._policy.choose(self._groups_per_step, self._next_moment()))

    @property
    def admitted(self) -> int:
        """Tickets given since the run first started, restarts included; the ordinal of the next ticket."""
        return self._groups.states.next_ordinal

    def conservation(self) -> dict[str, int]:
        """Number of groups in each state; `admitted` is the sum of all others.

        A group that is leased again after its first training stays `trained`.
        """
        return self._groups.states.conservation()

    def state_dict(self) -> dict[str, object]:
        """State that cannot be read from stored groups and leases: open tickets, and the policy's state."""
        return {ADMITTED: self.admitted, "rounds": self._rounds, "policy": self._policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; tickets that were open then and have no stored group are cancelled."""
        self._groups.states.reach(int(state[ADMITTED]))
        self._rounds = max(self._rounds, int(state["rounds"]))
        self._policy.load_state_dict(state["policy"])

    def metrics(self) -> dict[str, float]:
        """Metrics for the run's log: group counts, ages in optimizer steps, and those of `Gauges.read`."""
        mean, largest = self._groups.untrained.ages(self._now())
        counts = self.conservation()
        return {
            "outstanding": float(self.outstanding),
            "reuses": float(self._groups.reuses),
            "samples_per_insert": self._groups.settled_groups / max(1, self._groups.inserted),
            "queue_age_mean": mean,
            "queue_age_max": largest,
            **{f"dropped/{state}": float(counts[state]) for state in _UNTRAINED},
            **self._gauges.read(),
        }

    def _now(self) -> int:
        """Optimizer steps behind the newest weights."""
        return self._versions.optimizer_step(self._versions.latest)

    def _next_moment(self) -> Moment:
        return self._moment(max([*self._groups.held, *self._groups.settled], default=-1) + 1)

    def _moment(self, lease_step: int) -> Moment:
        """Facts about the lease for this step; held leases of earlier steps train first."""
        return Moment(
            lease=lease_step,
            step=self._now() + sum(step < lease_step for step in self._groups.held),
            groups_per_step=self._groups_per_step,
            max_staleness=self._max_staleness,
            inserted=self._groups.inserted,
            in_flight=self._groups.in_flight,
            fresh_in_flight=self._groups.states.leased,
            reuses=self._groups.reuses,
        )

    def _sweep(self, step: int) -> None:
        """Remove the groups that would be past their bound in a lease trained at `step`."""
        if self._max_staleness is None:
            return
        while late := self._groups.untrained.older_than(step - self._max_staleness):
            self._ledger.retire(self._consumer, sorted(c.group_id for c in late), GroupState.STALE)
            self._groups.expire(late)
            self._gauges.expired(late)
        window = self._policy.reuse_window
        bound = self._max_staleness if window is None else window
        while late := self._groups.reusable.older_than(step - bound):
            self._groups.expire(late)

    def _is_same(self, lease: Lease, other: Lease) -> bool:
        """Whether both are the same lease of this consumer; their epochs may differ."""
        named = (self._consumer, lease.step, lease.group_ids)
        return (lease.consumer, other.step, other.group_ids) == named
