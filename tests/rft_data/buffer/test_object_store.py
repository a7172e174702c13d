"""The same buffer on an S3-compatible store."""

import pytest

from rft_data.buffer import Buffer, store
from rft_data.buffer.store import Store
from rft_data.core.errors import FencedError, MissingFileError, StalledError
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler.ledger import Ledger
from tests.object_store import Way
from tests.rft_data.conftest import make_experience

pytestmark = pytest.mark.slow


@pytest.fixture
def prefix(bucket: str) -> str:
    return f"{bucket}/runs/buffer"


def kept_group(number: int, seqs: tuple[int, ...]) -> GroupResult:
    ticket = Ticket(f"run/0-{number:08d}", number, 0)
    return GroupResult(ticket, TaskKey("arith", "t0"), (1.0,) * len(seqs), "arrived", 0, seqs)


def test_rows_and_leases_on_an_object_store_survive_their_owner(prefix: str) -> None:
    with Buffer(prefix, durability="power") as buffer:
        assert buffer.append([make_experience(i) for i in range(4)]).seqs == (0, 1, 2, 3)
        ledger = Ledger(buffer, "run", 0)
        lease = ledger.grant("trainer", 0, 0, [kept_group(0, (0, 1))])
        assert buffer.take([3, 0]).column("seq").to_pylist() == [3, 0]
    with Buffer(prefix) as again:
        assert again.append([make_experience(3), make_experience(4)]).seqs == (3, 4)
        assert Ledger(again, "run", 1).find("trainer", 0) == lease
        assert again.take([4, 1]).column("seq").to_pylist() == [4, 1]
        again.compact()
        assert len(again) == 5


def test_a_reader_needs_no_ownership(prefix: str) -> None:
    with pytest.raises(MissingFileError, match="there is no buffer at s3://"):
        Buffer(prefix, read_only=True)
    with Buffer(prefix) as owner:
        owner.append([make_experience(0)])
        reader = Buffer(prefix, read_only=True)
        owner.append([make_experience(1)])  # the reader fenced nobody
        assert len(reader) == 2


def test_the_later_of_two_owners_wins_and_the_earlier_is_fenced(prefix: str) -> None:
    first = Buffer(prefix)
    first.append([make_experience(0)])
    ledger = Ledger(first, "run", 0)
    ledger.attach("trainer")
    with Buffer(prefix) as second:
        assert second.append([make_experience(1)]).seqs == (1,)
        for _ in range(2):  # and it stays fenced
            with pytest.raises(FencedError, match="taken over by another writer"):
                first.append([make_experience(2)])
        with pytest.raises(FencedError, match="taken over by another writer"):
            ledger.grant("trainer", 0, 0, [kept_group(0, (0,))])
        assert second.append([make_experience(2)]).seqs == (2,)
        rows = second.read("experiences", ["seq", "experience_id"]).to_pylist()
        assert [row["seq"] for row in rows] == [0, 1, 2]
        assert len({row["experience_id"] for row in rows}) == 3
    first.close()


def test_rows_committed_while_a_takeover_is_under_way_are_kept(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Buffer(prefix)
    first.append([make_experience(0)])
    real = Store.head
    late = iter([True])

    def head(store: Store, name: str) -> object:
        opened = real(store, name)
        if store is not first._store and name == "experiences" and next(late, False):
            first.append([make_experience(1)])  # between the look at the table and the restore
        return opened

    monkeypatch.setattr(Store, "head", head)
    with Buffer(prefix) as second:
        assert len(second) == 2
        assert second.append([make_experience(1), make_experience(2)]).seqs == (1, 2)
    first.close()


def test_an_append_is_as_patient_as_an_owner_is_and_may_be_sent_again(
    prefix: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENT", {"client_max_retries": "1"})  # instead of 5 minutes
    with Buffer(prefix) as buffer:
        assert buffer.append([make_experience(0), make_experience(1)]).seqs == (0, 1)
        way.break_off(1_000_000)
        with pytest.raises(StalledError, match=r"experiences\.lance cannot be reached") as refused:
            buffer.append([make_experience(2)])
        assert "max_retries: 1," in str(refused.value.__cause__)
        way.break_off(0)
        assert buffer.append([make_experience(2)]).seqs == (2,)
