"""First admitted, first trained, each group once, under a staleness bound.

Admission and leasing share one book, so what was admitted is always accounted for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rft_data.errors import ConflictError
from rft_data.ledger import Ledger
from rft_data.rows import GroupResult, Lease, Ticket
from rft_data.versions import VersionRegistry

OPEN, READY, LEASED, TRAINED = "open", "ready", "leased", "trained"
DROPPED, STALE, FAILED, CANCELLED = "dropped", "stale", "failed", "cancelled"
STATES = (OPEN, READY, LEASED, TRAINED, DROPPED, STALE, FAILED, CANCELLED)
_OUTSTANDING = (OPEN, READY, LEASED)


class Fifo:
    """The version-aware sampler of one consumer.

    Admission is relative (no absolute version enters): a ticket is given while
    `lag(engine) + outstanding // groups_per_step <= max_staleness`, where lag counts optimizer steps
    between the engine's weights and the newest, and outstanding groups are those open, ready or leased.
    A dropped, failed or stale group frees its place at once, which is how dynamic sampling
    (DAPO, arXiv:2503.14476) gets its refill.
    """

    def __init__(
        self,
        ledger: Ledger,
        versions: VersionRegistry,
        *,
        consumer: str,
        groups_per_step: int,
        max_staleness: int,
        history: Sequence[GroupResult] = (),
        settled_steps: int = 0,
    ) -> None:
        """Rebuild the book from `history`, the run's stored groups in order of admission.

        Groups leased for a step below `settled_steps` are trained; leases from there on will be
        redelivered, because the checkpoint the run resumes from does not hold them.
        """
        self._ledger = ledger
        self._versions = versions
        self._consumer = consumer
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._results: dict[str, GroupResult] = {}
        self._state: dict[str, str] = {}
        self._ready: set[str] = set()
        self._counts: Counter[str] = Counter()
        self.admitted = max((result.ticket.ordinal + 1 for result in history), default=0)
        lost = self.admitted - len(history)
        self._counts[CANCELLED] = lost  # admitted by a run that was killed before they arrived
        leased = {g: lease.step for lease in ledger.leases(consumer) for g in lease.group_ids}
        retired = ledger.retired(consumer)
        for result in sorted(history, key=lambda r: r.ticket.ordinal):
            group_id = result.ticket.group_id
            self._results[group_id] = result
            state = _arrival_state(result)
            if group_id in leased:
                state = TRAINED if leased[group_id] < settled_steps else LEASED
            elif group_id in retired:
                state = STALE
            self._move(group_id, state)

    def admit(self, n: int, engine_version: int) -> list[Ticket]:
        """At most n tickets for new groups, as many as the bound allows now."""
        lag = self._lag(engine_version)
        room = (self._max_staleness - lag + 1) * self._groups_per_step - self.outstanding
        tickets = []
        for _ in range(max(0, min(n, room))):
            ordinal = self.admitted
            ticket = Ticket(
                f"{self._ledger.run_id}/{self._ledger.attempt}-{ordinal:08d}", ordinal, engine_version
            )
            self.admitted += 1
            self._move(ticket.group_id, OPEN)
            tickets.append(ticket)
        return tickets

    def close(self, result: GroupResult) -> None:
        """Account for a ticket.

        Raises: ConflictError if its group is not open (closed twice, or never admitted).
        """
        group_id = result.ticket.group_id
        if self._state.get(group_id) != OPEN:
            raise ConflictError(
                f"group '{group_id}' is {self._state.get(group_id, 'unknown')}, not open; "
                "every ticket is closed exactly once."
            )
        self._results[group_id] = result
        self._move(group_id, _arrival_state(result))

    def lease(self, consumer: str, step: int, n_groups: int, version: int) -> Lease | None:
        """The oldest n ready groups for one step, or None when fewer are ready.

        Groups past the staleness bound are swept first: never trained, counted as stale.
        Asked again for the same step, the same lease comes back.
        Raises: ConflictError for another consumer than this sampler's.
        """
        if consumer != self._consumer:
            raise ConflictError(
                f"'{consumer}' asked the sampler of '{self._consumer}' for a lease; each has its own."
            )
        known = self._ledger.find(consumer, step)
        if known is not None:
            for group_id in known.group_ids:
                if self._state[group_id] == READY:  # granted by a call that failed after the write
                    self._move(group_id, LEASED)
            return known
        self._sweep()
        if len(self._ready) < n_groups:
            return None
        ready = sorted(self._ready, key=lambda g: self._results[g].ticket.ordinal)[:n_groups]
        lease = self._ledger.grant(consumer, step, version, [self._results[group_id] for group_id in ready])
        for group_id in ready:
            self._move(group_id, LEASED)
        return lease

    def settle(self, lease: Lease) -> None:
        """The lease's gradient step has been taken.

        Raises: ConflictError if a group of it is not leased.
        """
        for group_id in lease.group_ids:
            if self._state.get(group_id) != LEASED:
                raise ConflictError(
                    f"lease {lease.consumer}/{lease.step}: group '{group_id}' is "
                    f"{self._state.get(group_id, 'unknown')}, not leased."
                )
        for group_id in lease.group_ids:
            self._move(group_id, TRAINED)

    def release(self, lease: Lease, reason: str) -> None:
        """Give a lease back untrained: its groups are ready again, in their old order.

        Raises: ConflictError if it is not the step's present lease, or was trained.
        """
        known = self._ledger.find(lease.consumer, lease.step)
        states = {self._state.get(group_id) for group_id in lease.group_ids}
        if known is None or known.group_ids != lease.group_ids or states != {LEASED}:
            raise ConflictError(
                f"lease {lease.consumer}/{lease.step} is not held any more; only a lease that was not "
                "trained can be released, once."
            )
        self._ledger.release(lease, reason)
        for group_id in lease.group_ids:
            self._move(group_id, READY)

    @property
    def outstanding(self) -> int:
        """Groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        return sum(self._counts[state] for state in _OUTSTANDING)

    @property
    def ready(self) -> int:
        """Groups that could be leased now."""
        return self._counts[READY]

    def conservation(self) -> dict[str, int]:
        """Groups admitted, and how many are in each state."""
        return {"admitted": self.admitted, **{state: self._counts[state] for state in STATES}}

    def _lag(self, version: int) -> int:
        return self._versions.step_of(self._versions.latest) - self._versions.step_of(version)

    def _sweep(self) -> None:
        late = [g for g in self._ready if self._lag(self._results[g].version_min) > self._max_staleness]
        self._ledger.retire(self._consumer, sorted(late), STALE)
        for group_id in late:
            self._move(group_id, STALE)

    def _move(self, group_id: str, state: str) -> None:
        before = self._state.get(group_id)
        if before is not None:
            self._counts[before] -= 1
        self._counts[state] += 1
        self._state[group_id] = state
        if state == READY:
            self._ready.add(group_id)
        else:
            self._ready.discard(group_id)


def _arrival_state(result: GroupResult) -> str:
    if result.outcome != "arrived":
        return FAILED if result.outcome == "failed" else CANCELLED
    return READY if result.seqs else DROPPED
