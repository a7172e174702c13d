"""Any sampler under arbitrary arrivals, swaps, crashes, lost answers: bound, books and progress hold."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rft_data.core.groups import GroupResult, Lease, Ticket
from tests.rft_data.sampler.memory import House, result, stored

OTHER = 400
"""Stored groups of another run, for the mix."""
WINDOW = 8
REUSE_WINDOW = 3
POLICIES = {
    "fifo": {},
    "windowed": {"window": WINDOW},
    "ready_first": {},
    "fresh_first": {},
    "replay": {"max_reuse": 3, "samples_per_insert": 1.5, "tau": 2.0, "reuse_window": REUSE_WINDOW},
    "mix": {"parts": {"own": 2, "other/": 1}, "max_reuse": 2},
}
PACED = ("fifo", "windowed", "replay", "mix")


class SamplerMachine(RuleBasedStateMachine):
    """One explorer per engine, one trainer; `step` optimizer steps are behind the weights."""

    use: str

    @initialize(
        every=st.sampled_from([1, 1, 1, 2, 3, 5, 8]),
        slack=st.sampled_from([0, 1, 1, 2, 3, 7]),
        groups=st.integers(1, 4),
        engines=st.integers(1, 3),
        late=st.sampled_from([False, False, True]),
    )
    def open(self, every: int, slack: int, groups: int, engines: int, late: bool) -> None:
        use = self.use
        self.every, self.groups, self.late = every, groups, late
        self.bound = min(8, every - 1 + slack)
        self.max_uses = POLICIES[use].get("max_reuse", 1)
        self.house = House(
            use,
            groups=groups,
            bound=self.bound,
            max_uses=self.max_uses,
            history=stored("other", OTHER) if use == "mix" else (),
            **POLICIES[use],
        )
        self.others = len(self.house.history)
        self.published = self.house.versions.latest
        self.engines = [self.published] * engines
        self.step = 0
        self.open_tickets: list[Ticket] = []
        self.held: list[Lease] = []
        self.stale: set[str] = set()
        self.seen: dict[int, tuple[int, ...]] = {}
        self.given = 0
        self.saved = (0, self.house.sampler.state_dict(), 0)

    @property
    def sampler(self):
        return self.house.sampler

    # --- explorers ---------------------------------------------------------------------------------

    @rule(n=st.integers(1, 12), engine=st.integers(0, 2))
    def admit(self, n: int, engine: int) -> None:
        version = self.engines[engine % len(self.engines)]
        before, outstanding = self.given, self.sampler.outstanding
        tickets = self.sampler.admit(n, version)
        self.given += len(tickets)
        assert [t.ordinal for t in tickets] == list(range(before, self.given))
        assert len({t.round for t in tickets}) <= 1
        assert all(t.version == version for t in tickets)
        self.open_tickets += tickets
        lag = self.step - self.house.versions.optimizer_step(version)
        assert outstanding + len(tickets) <= max(outstanding, (self.bound - lag + 1) * self.groups)

    @rule(engine=st.integers(0, 2))
    def swap(self, engine: int) -> None:
        self.engines[engine % len(self.engines)] = self.published

    @precondition(lambda self: self.open_tickets)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["arrived", "arrived", "arrived", "dropped", "failed", "cancelled"]),
    )
    def arrive(self, data: st.DataObject, outcome: str) -> None:
        ticket = self.open_tickets.pop(data.draw(st.integers(0, len(self.open_tickets) - 1)))
        self.bring(ticket, outcome, self.version_min(data, ticket))
        self.sampler.close(self.house.history[-1])

    @precondition(lambda self: self.open_tickets)
    @rule(last_first=st.booleans())
    def all_arrive(self, last_first: bool) -> None:
        for ticket in self.open_tickets[:: -1 if last_first else 1]:
            self.house.close(ticket)
        self.open_tickets = []

    @precondition(lambda self: not self.held)
    @rule(steps=st.integers(2, 6), stragglers=st.integers(1, 2), home=st.booleans())
    def all_but_the_oldest_arrive_for_some_steps(self, steps: int, stragglers: int, home: bool) -> None:
        """The tail: what would be discarded by an order that only looks at what is ready."""
        for _ in range(steps):
            self.swap(0)
            self.admit(12, 0)
            for ticket in self.open_tickets[stragglers:]:
                self.house.close(ticket)
            del self.open_tickets[stragglers:]
            self.lease(answer_lost=False)
            if self.held:
                self.settle(gap=0)
        if home:
            self.all_arrive(last_first=False)
            self.lease(answer_lost=False)

    def version_min(self, data: st.DataObject, ticket: Ticket) -> int:
        """Its own version, a later one (swapped in flight), or an earlier one from an engine that is late."""
        known = sorted(self.house.versions._steps)
        of_late = [v for v in known if v <= ticket.version] if self.late else []
        later = [v for v in known if v >= ticket.version]
        return data.draw(st.sampled_from([*later, *of_late]))

    def bring(self, ticket: Ticket, outcome: str, version_min: int) -> None:
        named = "arrived" if outcome == "dropped" else outcome
        self.house.history.append(result(ticket, named, kept=outcome == "arrived", version_min=version_min))

    # --- trainer -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.held) < 2)
    @rule(answer_lost=st.booleans())
    def lease(self, answer_lost: bool) -> None:
        """Of the next step; with a lease in flight it is trained after that one."""
        step = self.step + len(self.held)
        known = self.house.ledger.find("trainer", step)
        lease = self.ask(step, self.groups, answer_lost)
        if lease is None:
            return
        assert len(lease.group_ids) == len(set(lease.group_ids))
        assert len(lease.group_ids) == self.groups if known is None else lease == known
        assert self.sampler.lease("trainer", step, self.groups, self.house.versions.latest) == lease
        self.held.append(lease)

    @precondition(lambda self: not self.held and not self.open_tickets)
    @rule()
    def lease_fewer(self) -> None:
        """What the loop does when nothing is under way and nothing may start."""
        ready = self.sampler.ready
        if 0 < ready < self.groups and self.use in ("fifo", "windowed", "replay"):
            lease = self.ask(self.step, ready, False)
            self.held += [] if lease is None else [lease]

    def situation(self) -> tuple[int, ...]:
        """What decides a choice: groups that arrived, steps settled, starts of the run."""
        return (len(self.house.history), self.step, self.house.ledger.attempt)

    def ask(self, step: int, n: int, answer_lost: bool) -> Lease | None:
        ledger, latest = self.house.ledger, self.house.versions.latest
        if ledger.find("trainer", step) is None:
            self.expire(step)
            self.seen[step] = self.situation()
        ledger.fails_after = "grant" if answer_lost else ""
        try:
            lease = self.sampler.lease("trainer", step, n, latest)
        except OSError:
            lease = self.sampler.lease("trainer", step, n, latest)
            assert lease is not None
        ledger.fails_after = ""
        known = self.history_by_id()
        for group_id in () if lease is None else lease.group_ids:
            if group_id.startswith("run/"):
                bound = REUSE_WINDOW if self.was_leased_before(group_id, step) else self.bound
                sampled = self.house.versions.optimizer_step(known[group_id].version_min)
                assert step - sampled <= bound, "past the bound"
        return lease

    def was_leased_before(self, group_id: str, step: int) -> bool:
        return any(lease.step < step and group_id in lease.group_ids for lease in self.house.ledger.leases())

    def expire(self, step: int) -> None:
        """What the sweep before this lease must take out."""
        states = self.states()
        for made in self.house.history:
            group_id = made.ticket.group_id
            ready = group_id.startswith("run/") and states[group_id] == "ready"
            if ready and step - self.house.versions.optimizer_step(made.version_min) > self.bound:
                self.stale.add(group_id)

    @precondition(lambda self: self.held)
    @rule(gap=st.integers(0, 2))
    def settle(self, gap: int) -> None:
        lease = self.held.pop(0)
        self.step += 1
        version = self.house.versions.issue(self.step, gap)
        if self.step % self.every == 0:
            self.published = version
        self.sampler.settle(lease)

    @precondition(lambda self: self.held)
    @rule(last=st.booleans(), answer_lost=st.booleans())
    def release_and_lease_again(self, last: bool, answer_lost: bool) -> None:
        lease = self.held[-1 if last else 0]
        self.house.ledger.fails_after = "release" if answer_lost else ""
        try:
            self.sampler.release(lease, "given back")
        except OSError:
            self.sampler.release(lease, "given back")
        if last:
            n = len(lease.group_ids)
            again = self.sampler.lease("trainer", lease.step, n, self.house.versions.latest)
            assert again is not None
            # what arrived since may come first in an order that does not wait
            if self.use in ("fifo", "mix") or self.seen[lease.step] == self.situation():
                assert again.group_ids == lease.group_ids, "released groups come back in their order"
            self.seen[lease.step] = self.situation()
            self.held[-1] = again
        else:
            self.held.remove(lease)
            for other in self.held:  # the step behind cannot be trained before this one either
                self.sampler.release(other, "given back")
            self.held = []

    # --- checkpoints and crashes -------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        self.saved = (self.step, self.sampler.state_dict(), self.given)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """Everything dies; some open groups had been stored and are judged at the restart."""
        keep = data.draw(st.integers(0, len(self.open_tickets)))
        for ticket in self.open_tickets[:keep]:
            self.bring(ticket, "arrived", self.version_min(data, ticket))
        self.open_tickets, self.held = [], []
        self.step, state, given = self.saved
        self.house.ledger.attempt += 1
        self.house.start(self.step).load_state_dict(state)
        stored_own = self.house.history[self.others :]
        self.given = max([given, *(made.ticket.ordinal + 1 for made in stored_own)])
        self.published = self.house.versions.issue(self.step)
        self.engines = [self.published] * len(self.engines)

    # --- what must hold ----------------------------------------------------------------------------

    def history_by_id(self) -> dict[str, GroupResult]:
        return {made.ticket.group_id: made for made in self.house.history}

    def states(self) -> dict[str, str]:
        """Where every stored group must be, from the history and the leases alone."""
        leased = {}
        for lease in self.house.ledger.leases("trainer"):
            for group_id in lease.group_ids:
                trained = lease.step < self.step or leased.get(group_id) == "trained"
                leased[group_id] = "trained" if trained else "leased"
        states = {}
        for made in self.house.history:
            group_id = made.ticket.group_id
            if made.outcome != "arrived":
                states[group_id] = made.outcome
            elif not made.seqs:
                states[group_id] = "dropped"
            else:
                states[group_id] = leased.get(group_id, "stale" if group_id in self.stale else "ready")
        return states

    @invariant()
    def books_are_exact(self) -> None:
        if not hasattr(self, "house"):
            return
        expected = Counter(self.states().values())
        expected["open"] = len(self.open_tickets)
        closed = len(self.house.history) - self.others
        expected["cancelled"] += self.given - closed - len(self.open_tickets)
        expected["admitted"] = self.given + self.others
        counts = self.sampler.conservation()
        assert counts == {state: expected[state] for state in counts}
        assert counts["admitted"] == sum(counts.values()) - counts["admitted"]
        own = Counter(state for group_id, state in self.states().items() if group_id.startswith("run/"))
        assert self.sampler.outstanding == own["ready"] + own["leased"] + len(self.open_tickets)
        assert set(self.house.ledger.retired("trainer")) == self.stale

    @invariant()
    def uses_are_bounded(self) -> None:
        if not hasattr(self, "house"):
            return
        uses = Counter(g for lease in self.house.ledger.leases() for g in lease.group_ids)
        for group_id, times in uses.items():
            assert times <= (1 if self.use == "mix" and group_id.startswith("run/") else self.max_uses)
        if self.use == "replay":
            arrived = sum(bool(made.seqs) for made in self.house.history)
            assert uses.total() <= 1.5 * arrived

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """With nothing open and nothing leased, a step can be leased or a group can start."""
        if not hasattr(self, "house") or self.open_tickets or self.held:
            return
        redelivered = self.house.ledger.find("trainer", self.step) is not None
        if not redelivered and self.sampler.ready < self.groups:
            room = self.sampler.admit(1, self.published)
            assert room, f"stuck with {self.sampler.conservation()}"
            self.given += 1
            self.open_tickets += room

    @invariant()
    def order_is_kept_and_nothing_discarded(self) -> None:
        if not hasattr(self, "house") or self.use not in PACED:
            return
        assert self.late or not self.stale, "a paced policy discards only what a late engine brought"
        window = WINDOW if self.use == "windowed" else 0
        taken = [
            int(g.rpartition("-")[2])
            for lease in self.house.ledger.leases()
            for g in lease.group_ids
            if g.startswith("run/")
        ]
        for ticket in (
            () if self.use == "replay" else self.open_tickets
        ):  # it overtakes as far as all are in time
            assert sum(ordinal > ticket.ordinal for ordinal in taken) <= window


def machine(policy: str, examples: int = 25) -> type:
    made = type(f"Machine_{policy}", (SamplerMachine,), {"use": policy}).TestCase
    made.settings = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    return pytest.mark.slow(made)


TestFifo = machine("fifo")
TestWindowed = machine("windowed", 60)
TestReadyFirst = machine("ready_first")
TestFreshFirst = machine("fresh_first")
TestReplay = machine("replay")
TestMix = machine("mix")
