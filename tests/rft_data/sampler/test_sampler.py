from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler import History, make_sampler
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry

TASK = TaskKey("a", "t")


def result(ticket: Ticket, outcome: str = "arrived", kept: bool = True) -> GroupResult:
    seqs = (2 * ticket.ordinal, 2 * ticket.ordinal + 1) if kept and outcome == "arrived" else ()
    return GroupResult(ticket, TASK, (0.0, 1.0), outcome, ticket.version, seqs, "" if kept else "filter")


class House:
    """A sampler with its ledger and registry, and the groups it has stored."""

    def __init__(self, root: Path, *, groups_per_step: int = 2, max_staleness: int = 0) -> None:
        self.buffer = Buffer(root / "buffer")
        self.settings = {"groups_per_step": groups_per_step, "max_staleness": max_staleness}
        self.history: list[GroupResult] = []
        self.epoch = -1
        self.start(0)
        self.versions.issue(0)

    def start(self, settled_steps: int) -> None:
        self.epoch += 1
        self.ledger = Ledger(self.buffer, "run", self.epoch)
        self.versions = VersionRegistry(self.buffer, "run", self.buffer.root)
        self.sampler = make_sampler(
            "fifo",
            {},
            ledger=self.ledger,
            versions=self.versions,
            consumer="trainer",
            history=History(self.history, settled_steps=settled_steps),
            **self.settings,
        )

    def close(self, ticket: Ticket, outcome: str = "arrived", kept: bool = True) -> None:
        self.history.append(result(ticket, outcome, kept))
        self.sampler.close(self.history[-1])


@pytest.fixture
def house(tmp_path: Path):
    made = House(tmp_path)
    yield made
    made.buffer.close()


def test_synchronous_admission_stops_at_one_step_of_groups(house: House) -> None:
    tickets = house.sampler.admit(10, engine_version=0)
    assert [t.ordinal for t in tickets] == [0, 1]
    assert house.sampler.admit(10, 0) == []


def test_dropped_and_failed_groups_free_their_place_at_once(house: House) -> None:
    first, second = house.sampler.admit(10, 0)
    house.close(first, kept=False)
    house.close(second, outcome="failed")
    assert len(house.sampler.admit(10, 0)) == 2
    assert house.sampler.conservation()["dropped"] == 1
    assert house.sampler.conservation()["failed"] == 1


def test_lease_hands_out_whole_groups_in_order_of_admission_once(tmp_path: Path) -> None:
    house = House(tmp_path, max_staleness=1)
    tickets = house.sampler.admit(4, 0)
    for ticket in reversed(tickets):
        house.close(ticket)
    lease = house.sampler.lease("trainer", 0, 2, 0)
    assert lease is not None
    assert lease.group_ids == (tickets[0].group_id, tickets[1].group_id)
    assert lease.seqs == (0, 1, 2, 3)
    assert house.sampler.lease("trainer", 0, 2, 0) == lease
    house.sampler.settle(lease)
    other = house.sampler.lease("trainer", 1, 2, 0)
    assert other is not None
    assert other.group_ids == (tickets[2].group_id, tickets[3].group_id)
    house.buffer.close()


def test_lease_waits_for_a_whole_step(house: House) -> None:
    first, _ = house.sampler.admit(2, 0)
    house.close(first)
    assert house.sampler.lease("trainer", 0, 2, 0) is None


def test_ticket_is_closed_exactly_once(house: House) -> None:
    ticket, _ = house.sampler.admit(2, 0)
    house.close(ticket)
    with pytest.raises(ConflictError, match="is ready, not open"):
        house.sampler.close(result(ticket))
    with pytest.raises(ConflictError, match="is unknown, not open"):
        house.sampler.close(result(Ticket("run/0-99999999", 99, 0)))


@pytest.mark.slow
def test_stale_groups_are_swept_not_trained(tmp_path: Path) -> None:
    house = House(tmp_path, max_staleness=1)
    for ticket in house.sampler.admit(2, 0):
        house.close(ticket)
    house.versions.issue(1)
    house.versions.issue(2)  # lag is now 2 steps
    assert house.sampler.lease("trainer", 2, 2, 2) is None
    assert house.sampler.conservation()["stale"] == 2
    house.buffer.close()


def test_a_group_is_stale_from_the_step_on_that_would_train_it_past_the_bound(tmp_path: Path) -> None:
    house = House(tmp_path, max_staleness=1)
    (ticket,) = house.sampler.admit(1, 0)
    late = result(ticket)
    stale = []
    for step in (1, 2):
        stale.append(house.sampler.is_stale(late))
        house.versions.issue(step)
    assert [*stale, house.sampler.is_stale(late)] == [False, False, True]
    house.buffer.close()


def test_lag_counts_steps_not_version_numbers(tmp_path: Path) -> None:
    house = House(tmp_path)
    for ticket in house.sampler.admit(2, 0):
        house.close(ticket)
    for _ in range(5):
        house.versions.issue(0)  # restarts issue new numbers for the same step
    assert house.sampler.lease("trainer", 0, 2, house.versions.latest) is not None
    house.buffer.close()


def test_lease_not_in_a_checkpoint_comes_back_the_same_after_a_restart(house: House) -> None:
    for step in range(2):
        for ticket in house.sampler.admit(2, step):
            house.close(ticket)
        lease = house.sampler.lease("trainer", step, 2, step)
        house.sampler.settle(lease)
        house.versions.issue(step + 1)
    house.start(settled_steps=1)
    assert house.sampler.conservation() | {"trained": 2, "leased": 2} == house.sampler.conservation()
    again = house.sampler.lease("trainer", 1, 2, house.versions.latest)
    assert (again.seqs, again.group_ids) == (lease.seqs, lease.group_ids)


def test_ledger_refuses_to_lease_a_group_twice(house: House) -> None:
    first, second = (result(Ticket(f"run/g{n}", n, 0), "arrived", True) for n in range(2))
    house.ledger.grant("trainer", 0, 0, [first])
    with pytest.raises(ConflictError, match="was leased to 'trainer' before; it may be used 1 time"):
        house.ledger.grant("trainer", 1, 0, [first])
    with pytest.raises(ConflictError, match="step 0 of 'trainer' has a lease already"):
        house.ledger.grant("trainer", 0, 0, [second])
    house.ledger.grant("auditor", 0, 0, [first])  # another consumer has its own books


@pytest.mark.parametrize("max_uses", [1, 2, 3])
def test_ledger_counts_every_use_of_a_group_in_one_lease_and_over_restarts(
    tmp_path: Path, max_uses: int
) -> None:
    one, other = (result(Ticket(f"run/g{n}", n, 0)) for n in range(2))
    with Buffer(tmp_path / "b") as buffer:
        ledgers = [Ledger(buffer, "run", 0, max_uses=max_uses)]
        with pytest.raises(ConflictError, match=f"it may be used {max_uses} time"):
            ledgers[0].grant("trainer", 0, 0, [other, *[one] * (max_uses + 1)])
        lease = ledgers[0].grant("trainer", 0, 0, [other, *[one] * max_uses])
        assert lease.group_ids == ("run/g1", *["run/g0"] * max_uses)
        ledgers.append(Ledger(buffer, "run", 1, max_uses=max_uses))
        for ledger in ledgers:
            with pytest.raises(ConflictError, match="'run/g0' was leased to 'trainer'"):
                ledger.grant("trainer", 1, 0, [one])
        ledgers[1].release(lease, "given back")
        last = Ledger(buffer, "run", 2, max_uses=max_uses)
        last.grant("trainer", 1, 0, [one] * max_uses)
        with pytest.raises(ConflictError, match="'run/g0' was leased to 'trainer'"):
            last.grant("trainer", 2, 0, [one])
        last.grant("auditor", 2, 0, [one])


def test_consumption_is_recorded_once(house: House) -> None:
    for step in range(3):
        house.ledger.grant("trainer", step, 0, [result(Ticket(f"run/g{step}", step, 0), "arrived", True)])
    house.ledger.consume("trainer", 2)
    house.ledger.consume("trainer", 2)
    assert house.ledger.consumed("trainer") == 2
    assert Ledger(house.buffer, "run", 1).consumed("trainer") == 2
    assert house.buffer.read("consumed").column("step").to_pylist() == [0, 1]


class SamplerMachine(RuleBasedStateMachine):
    """Random admissions, outcomes, steps, publications and restarts never break bound or books."""

    @initialize(data=st.data(), every=st.integers(1, 4), slack=st.integers(0, 4), groups=st.integers(1, 3))
    def open(self, data: st.DataObject, every: int, slack: int, groups: int) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.every, self.bound, self.groups = every, every - 1 + slack, groups
        self.house = House(Path(self.folder.name), groups_per_step=groups, max_staleness=self.bound)
        self.engine = 0
        self.step = 0
        self.open_tickets: list[Ticket] = []
        self.trained: list[str] = []

    @rule(n=st.integers(1, 6))
    def admit(self, n: int) -> None:
        self.open_tickets += self.house.sampler.admit(n, self.engine)

    @precondition(lambda self: getattr(self, "open_tickets", None))
    @rule(data=st.data(), outcome=st.sampled_from(["arrived", "arrived", "dropped", "failed", "cancelled"]))
    def arrive(self, data: st.DataObject, outcome: str) -> None:
        ticket = self.open_tickets.pop(data.draw(st.integers(0, len(self.open_tickets) - 1)))
        self.house.close(ticket, "arrived" if outcome == "dropped" else outcome, kept=outcome == "arrived")

    @rule()
    def train(self) -> None:
        lease = self.house.sampler.lease("trainer", self.step, self.groups, self.house.versions.latest)
        if lease is None:
            return
        for group_id in lease.group_ids:
            assert group_id not in self.trained, "trained twice"
            [made] = [r for r in self.house.history if r.ticket.group_id == group_id]
            lag = self.step - self.house.versions.optimizer_step(made.version_min)
            assert 0 <= lag <= self.bound
        self.trained += lease.group_ids
        self.house.sampler.settle(lease)
        self.step += 1
        version = self.house.versions.issue(self.step)
        if self.step % self.every == 0:
            self.engine = version

    @rule()
    def restart(self) -> None:
        """The owner dies after a checkpoint; open tickets are lost."""
        self.open_tickets = []
        self.house.start(settled_steps=self.step)
        self.engine = self.house.versions.issue(self.step)

    @invariant()
    def conserved(self) -> None:
        if not hasattr(self, "house"):
            return
        counts = self.house.sampler.conservation()
        assert counts["admitted"] == sum(v for k, v in counts.items() if k != "admitted")
        assert counts["trained"] == len(self.trained)
        assert counts["open"] == len(self.open_tickets)

    @invariant()
    def no_deadlock(self) -> None:
        """Either something is open, or a step can train, or a new group may start."""
        if not hasattr(self, "house") or self.open_tickets:
            return
        sampler = self.house.sampler
        if sampler.ready < self.groups:
            room = sampler.admit(1, self.engine)
            assert room, f"stuck with {sampler.conservation()}"
            self.open_tickets += room

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self.house.buffer.close()
            self.folder.cleanup()


TestSamplerMachine = pytest.mark.slow(SamplerMachine.TestCase)
TestSamplerMachine.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)
