from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, FencedError, RftError, RowError
from rft_data.core.failpoints import armed
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import TaskKey
from rft_data.placement.hub import HubClient, HubServer
from rft_data.sampler import make_sampler
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry


def group(number: int) -> GroupResult:
    ticket = Ticket(f"run/{number}", number, 3)
    seqs = (2 * number, 2 * number + 1)
    return GroupResult(ticket, TaskKey("a", "t"), (0.1, None), "arrived", 3, seqs)


def events(buffer: Buffer) -> list[str]:
    return buffer.read("leases", ["kind"]).column("kind").to_pylist()


@pytest.mark.slow
def test_leases_over_the_wire_are_those_of_the_ledger(buffer: Buffer, client: HubClient) -> None:
    ledger = client.ledger("run", 0)
    assert ledger.attach("trainer") == 1
    lease = ledger.grant("trainer", 0, 3, [group(1), group(0)])
    ledger.grant("trainer", 1, 3, [group(2)])
    ledger.retire("trainer", ["run/7"], "stale")
    assert lease.seqs == (2, 3, 0, 1)
    assert (lease.epoch, lease.version, lease.group_ids) == (1, 3, ("run/1", "run/0"))
    ledger.consume("trainer", 1)
    assert ledger.consumed("trainer") == 1
    assert ledger.is_consumed(lease)
    with pytest.raises(ConflictError, match="part of a checkpoint"):
        ledger.release(lease, "rollback")
    read = Ledger(buffer, "run", 0)
    assert ledger.leases() == ledger.leases("trainer") == read.leases()
    assert ledger.leases("other") == []
    assert ledger.find("trainer", 0) == read.find("trainer", 0) == lease
    assert ledger.find("trainer", 9) is None
    assert ledger.retired("trainer") == read.retired("trainer") == {"run/7": "stale"}
    assert (read.consumed("trainer"), read.is_consumed(lease)) == (1, True)


@pytest.mark.slow
def test_a_grant_asked_again_is_the_stored_one(buffer: Buffer, client: HubClient) -> None:
    ledger = client.ledger("run", 0)
    ledger.attach("trainer")
    with armed("lease.granted", 1), pytest.raises(RftError, match="'grant' failed with OSError"):
        ledger.grant("trainer", 0, 3, [group(0)])  # stored, and then the answer was lost
    lease = ledger.grant("trainer", 0, 3, [group(0)])
    assert ledger.grant("trainer", 0, 3, [group(0)]) == lease
    assert events(buffer) == ["attach", "grant"]
    for version, groups in [(3, [group(1)]), (4, [group(0)]), (3, [group(0), group(1)])]:
        with pytest.raises(ConflictError, match="has a lease already"):
            ledger.grant("trainer", 0, version, groups)
    assert events(buffer) == ["attach", "grant"]


@pytest.mark.slow
def test_a_replaced_consumer_can_do_nothing_more(buffer: Buffer, client: HubClient) -> None:
    old, new = client.ledger("run", 0), client.ledger("run", 0)
    assert old.attach("trainer") == 1
    lease = old.grant("trainer", 0, 3, [group(0)])
    assert new.attach("trainer") == 2
    before = events(buffer)
    for act in (
        lambda: old.find("trainer", 0),
        lambda: old.grant("trainer", 0, 3, [group(0)]),
        lambda: old.grant("trainer", 1, 3, [group(1)]),
        lambda: old.release(lease, "crash"),
        lambda: old.retire("trainer", ["run/5"], "stale"),
        lambda: old.consume("trainer", 1),
        lambda: client.ledger("run", 0).consume("trainer", 1),  # never attached at all
    ):
        with pytest.raises(FencedError, match="took over as this consumer"):
            act()
    assert events(buffer) == before
    assert buffer.counts()["consumed"] == 0
    again = new.find("trainer", 0)
    assert (again.seqs, again.epoch) == (lease.seqs, 2)
    new.consume("trainer", 1)


@pytest.mark.slow
def test_a_release_that_comes_late_leaves_the_next_lease_alone(client: HubClient) -> None:
    ledger = client.ledger("run", 0)
    ledger.attach("trainer")
    first = ledger.grant("trainer", 0, 3, [group(0)])
    ledger.release(first, "crash")
    ledger.release(first, "crash")
    second = ledger.grant("trainer", 0, 3, [group(1)])
    ledger.release(first, "crash")
    assert ledger.find("trainer", 0) == second
    assert ledger.grant("trainer", 1, 3, [group(0)]).seqs == first.seqs


@pytest.mark.slow
def test_consumers_have_their_own_books(client: HubClient) -> None:
    ledger = client.ledger("run", 0)
    for consumer in ("policy", "critic"):
        ledger.attach(consumer)
        assert ledger.grant(consumer, 0, 3, [group(0)]).consumer == consumer
    assert client.ledger("other run", 0).leases() == []


@pytest.mark.slow
def test_the_hubs_own_process_shares_the_ledger(hub: HubServer, client: HubClient) -> None:
    remote = client.ledger("run", 0)
    remote.attach("trainer")
    remote.grant("trainer", 0, 3, [group(0)])
    mine = hub.ledger("run", 1)
    assert mine.attempt == 1
    assert mine.find("trainer", 0) == remote.find("trainer", 0)
    with pytest.raises(ConflictError, match="leased to 'trainer' before"):
        mine.grant("trainer", 1, 3, [group(0)])
    with pytest.raises(ConflictError, match="open with max_uses=1, asked for is 2"):
        client.ledger("run", 0, max_uses=2).leases()


@pytest.mark.slow
def test_a_sampler_works_on_a_remote_ledger(client: HubClient, tmp_path: Path) -> None:
    versions = VersionRegistry(client, "run", tmp_path)
    versions.issue(0)
    ledger = client.ledger("run", 0)
    ledger.attach("trainer")
    sampler = make_sampler(
        "fifo", {}, ledger=ledger, versions=versions, consumer="trainer", groups_per_step=2, max_staleness=0
    )
    for ticket in sampler.admit(4, 0):
        seqs = (2 * ticket.ordinal, 2 * ticket.ordinal + 1)
        sampler.close(GroupResult(ticket, TaskKey("a", "t"), (0.0, 1.0), "arrived", 0, seqs))
    lease = sampler.lease("trainer", 0, 2, 0)
    assert lease.seqs == (0, 1, 2, 3)
    assert sampler.lease("trainer", 0, 2, 0) == lease
    sampler.settle(lease)
    assert sampler.conservation()["trained"] == 2


def test_malformed_groups_are_refused_with_every_fault(client: HubClient) -> None:
    ledger = client.ledger("run", 0)
    ledger.attach("trainer")
    with pytest.raises(RowError, match=r"groups\.0\.ticket.*; groups\.0\.rewards"):
        ledger.grant("trainer", 0, 3, [{"task": {"taskset": "a", "task_id": "t"}}])
