"""The ledger alone: what it promises now is what one that is opened anew reads from the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, FencedError
from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler.ledger import Ledger

WHO, OTHER = "trainer", "another"


def group(name: str, *seqs: int) -> GroupResult:
    return GroupResult(Ticket(name, 0, 4), TaskKey("arith", "t0"), (), "arrived", 4, seqs, "")


A, B, C = group("a", 0, 1), group("b", 2), group("c", 3, 4)


def state(ledger: Ledger) -> Mapping[str, Any]:
    """All that a ledger says."""
    who = [*ledger.consumers(), WHO, OTHER]
    leases = ledger.leases()
    return {
        "consumers": ledger.consumers(),
        "leases": leases,
        "mine": {name: [lease.step for lease in ledger.leases(name)] for name in who},
        "found": {(x.consumer, x.step): ledger.find(x.consumer, x.step) for x in leases},
        "retired": {name: ledger.retired(name) for name in who},
        "consumed": {name: ledger.consumed(name) for name in who},
        "is consumed": [ledger.is_consumed(lease) for lease in leases],
    }


@pytest.fixture
def ledger(buffer: Buffer) -> Ledger:
    return Ledger(buffer, "run", 0)


def again(ledger: Ledger, buffer: Buffer) -> Ledger:
    """The ledger of the next attempt; it says what this one says."""
    opened = Ledger(buffer, "run", 1, max_uses=ledger.max_uses)
    assert state(opened) == state(ledger)
    return opened


def test_epochs_begin_at_one_and_a_replaced_consumer_is_fenced(ledger: Ledger, buffer: Buffer) -> None:
    assert ledger.find(WHO, 0, epoch=0) is None, "nobody attached yet"
    assert ledger.grant(OTHER, 0, 4, [A]).epoch == 0
    assert [ledger.attach(WHO), ledger.attach(WHO), ledger.attach(OTHER)] == [1, 2, 1]
    assert ledger.consumers() == [OTHER, WHO]
    lease = ledger.grant(WHO, 0, 4, [B], epoch=2)
    assert lease == Lease(WHO, 0, 2, 4, (2,), ("b",), lease.digest)
    ledger = again(ledger, buffer)
    assert ledger.attach(WHO) == 3
    assert ledger.find(WHO, 0).epoch == ledger.find(WHO, 0, epoch=3).epoch == 3
    assert ledger.find(OTHER, 0, epoch=1).epoch == 1
    before = state(ledger)
    for epoch in (2, 4):
        acts: list[Callable[[int], object]] = [
            lambda e: ledger.find(WHO, 0, epoch=e),
            lambda e: ledger.grant(WHO, 1, 4, [C], epoch=e),
            lambda e: ledger.release(lease, "late", epoch=e),
        ]
        for act in acts:
            with pytest.raises(FencedError, match=f"holds epoch {epoch}, the current epoch is 3"):
                act(epoch)
    assert state(ledger) == before


def test_a_lease_holds_the_rows_of_its_groups_in_order_and_a_step_has_one(
    ledger: Ledger, buffer: Buffer
) -> None:
    lease = ledger.grant(WHO, 5, 7, [C, A])
    assert (lease.seqs, lease.group_ids, lease.version, lease.step) == ((3, 4, 0, 1), ("c", "a"), 7, 5)
    with pytest.raises(ConflictError, match="step 5 of 'trainer' has a lease already"):
        ledger.grant(WHO, 5, 7, [B])
    assert ledger.grant(OTHER, 5, 8, [C]).seqs == (3, 4), "each consumer has its own steps and uses"
    assert [x.consumer for x in ledger.leases()] == [WHO, OTHER]
    assert ledger.find(WHO, 4) is None
    again(ledger, buffer)


@pytest.mark.parametrize(
    ("max_uses", "said"), [(1, "before; it may be used 1 time."), (2, "2 times; it may be used 2 times.")]
)
def test_a_group_is_leased_as_often_as_allowed(buffer: Buffer, max_uses: int, said: str) -> None:
    ledger = Ledger(buffer, "run", 0, max_uses=max_uses)
    for step in range(max_uses):
        ledger.grant(WHO, step, 4, [A])
    for opened in (ledger, again(ledger, buffer)):
        with pytest.raises(ConflictError) as refused:
            opened.grant(WHO, 9, 4, [B, A])
        assert str(refused.value) == f"group 'a' was leased to 'trainer' {said}"
    with pytest.raises(ConflictError, match="group 'c' was leased"):
        ledger.grant(WHO, 9, 4, [C] * (max_uses + 1))
    assert ledger.grant(WHO, 9, 4, [C] * max_uses).group_ids == ("c",) * max_uses
    with pytest.raises(ConflictError, match="group 'empty' has no row that training may use"):
        ledger.grant(WHO, 10, 4, [group("empty")])


@pytest.mark.slow
def test_a_released_lease_frees_its_step_and_groups_each_time(ledger: Ledger, buffer: Buffer) -> None:
    for _ in range(3):
        lease = ledger.grant(WHO, 0, 4, [A, B])
        ledger.release(lease, "the trainer died")
        ledger.release(lease, "twice")
        assert again(ledger, buffer).leases() == []
    ledger.grant(WHO, 0, 4, [B])
    ledger.release(lease, "late: the step has another lease by now")
    assert [x.group_ids for x in again(ledger, buffer).leases()] == [("b",)]
    ledger.grant(WHO, 1, 4, [A])
    assert buffer.read("leases", ["reason"]).column("reason").to_pylist().count("the trainer died") == 3


@pytest.mark.slow
def test_retired_groups_are_not_leased_any_more(ledger: Ledger, buffer: Buffer) -> None:
    ledger.retire(WHO, ["a", "b"], "stale")
    ledger.retire(WHO, ["b", "c"], "resume")
    ledger.retire(WHO, ["a"], "again")
    ledger.retire("", ["lost"], "repair")
    assert len(buffer.read("leases")) == 3, "what is retired already is not written again"
    for opened in (ledger, again(ledger, buffer)):
        assert opened.retired(WHO) == {"a": "stale", "b": "stale", "c": "resume", "lost": "repair"}
        assert opened.retired(OTHER) == {"lost": "repair"}
        with pytest.raises(ConflictError, match=r"group 'c' is retired \(resume\)"):
            opened.grant(WHO, 0, 4, [C])
        for who in (WHO, OTHER):
            with pytest.raises(ConflictError, match=r"group 'lost' is retired \(repair\)"):
                opened.grant(who, 0, 4, [group("lost", 9)])
    ledger.grant(OTHER, 0, 4, [A])


@pytest.mark.slow
def test_steps_before_a_checkpoint_are_consumed_once_and_stay(ledger: Ledger, buffer: Buffer) -> None:
    leases = [ledger.grant(WHO, step, 4, [each]) for step, each in enumerate((A, B, C))]
    other = ledger.grant(OTHER, 0, 4, [A])
    ledger.consume(WHO, 1)
    ledger.consume(WHO, 2)
    ledger.consume(WHO, 2)
    assert [ledger.is_consumed(lease) for lease in (*leases, other)] == [True, True, False, False]
    assert (ledger.consumed(WHO), ledger.consumed(OTHER)) == (2, 0)
    rows = buffer.read("consumed").to_pylist()
    assert [(row["lease_id"], row["step"], row["checkpoint_step"]) for row in rows] == [
        ("run/trainer/0", 0, 1),
        ("run/trainer/1", 1, 2),
    ]
    opened = again(ledger, buffer)
    with pytest.raises(ConflictError, match="step 1 of 'trainer' is part of a checkpoint"):
        opened.release(leases[1], "too late")
    opened.release(leases[2], "in time")
    assert opened.leases(WHO) == leases[:2]
    assert Ledger(buffer, "another run", 0).leases() == []
    assert Ledger(buffer, "another run", 0).consumed(WHO) == 0


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_after_a_failed_write_the_ledger_is_what_the_tables_say(
    ledger: Ledger, buffer: Buffer, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    lease = ledger.grant(WHO, 0, 4, [A])
    add_rows = Buffer.add_rows

    def fails(self: Buffer, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if written:
            add_rows(self, name, rows)
        raise OSError("the disk went away")

    acts: list[Callable[[], object]] = [
        lambda: ledger.attach(OTHER),
        lambda: ledger.retire(WHO, ["b"], "stale"),
        lambda: ledger.grant(WHO, 1, 4, [C]),
        lambda: ledger.release(lease, "died"),
        lambda: ledger.consume(WHO, 2),
    ]
    for act in acts:
        with monkeypatch.context() as broken:
            broken.setattr(Buffer, "add_rows", fails)
            with pytest.raises(OSError, match="went away"):
                act()
        again(ledger, buffer)
    found = (len(ledger.consumers()), len(ledger.retired(WHO)), len(ledger.leases()), ledger.consumed(WHO))
    assert found == ((2, 1, 1, 1) if written else (1, 0, 1, 0))
