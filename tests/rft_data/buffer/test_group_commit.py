"""Group commit: which appends share a commit, how much may wait, and what follows an append that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer, group_commit
from rft_data.buffer.group_commit import GroupCommit, Pending, Prepared
from rft_data.core.codec import to_table
from rft_data.core.errors import RftError, StalledError
from rft_data.core.schema import INCOMING
from tests.rft_data.conftest import make_experience

CAP = 128 << 20
FAR = 60.0


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return to_table([make_experience(number) for number in range(600)], INCOMING)


class Held:
    """A store whose commits wait until `open` is set; it notes how many rows each append of a commit has."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.batches: list[list[int]] = []

    def commit(self, batch: Prepared) -> None:
        self.begun.set()
        assert self.open.wait(FAR)
        self.batches.append([pending.brought for pending in batch.pending])
        if batch.pending[0].brought == 599:
            raise RftError("the disk is full")
        for pending in batch.pending:
            pending.future.set_result(pending.brought)


@pytest.fixture
def store() -> Held:
    return Held()


@pytest.fixture
def writer(store: Held) -> Iterator[GroupCommit]:
    made = GroupCommit(store.commit, linger_s=0.005)
    yield made
    store.open.set()
    made.close()


Send = Callable[..., Future]


@pytest.fixture
def send(writer: GroupCommit, rows: pa.Table) -> Send:
    """Queue an append of n rows."""

    def sent(n: int, *, urgent: bool = False, size: int | None = None, deadline_s: float = FAR) -> Future:
        pending = Pending(rows.slice(0, n), urgent)
        pending.size = pending.size if size is None else size
        writer.submit(pending, deadline_s)
        return pending.future

    return sent


@pytest.fixture
def busy(send: Send, store: Held) -> Future:
    """One append whose commit is under way, so that all others wait."""
    future = send(1)
    assert store.begun.wait(FAR)
    return future


@pytest.mark.slow
@pytest.mark.parametrize("fill", [[CAP], [CAP // 2, CAP // 2], [1, 1, CAP - 2], [2 * CAP]])
def test_appends_wait_up_to_128_mib_and_the_next_is_refused(
    busy: Future, send: Send, store: Held, fill: list[int]
) -> None:
    futures = [busy, *(send(1, size=size, deadline_s=5) for size in fill)]
    with pytest.raises(StalledError, match=f"{len(fill)} appends with {len(fill)} rows are waiting"):
        send(1, size=1, deadline_s=0.01)
    store.open.set()
    assert [future.result(FAR) for future in futures] == [1] * len(futures)
    store.open.clear(), store.begun.clear()
    again = send(1)  # what has left counts no more
    assert store.begun.wait(FAR)
    last = send(1, size=CAP, deadline_s=5)
    store.open.set()
    assert again.result(FAR) + last.result(FAR) == 2


def test_append_that_found_no_room_goes_on_as_soon_as_there_is_some(
    busy: Future, send: Send, store: Held
) -> None:
    first = send(1, size=CAP)
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(send, 1, size=1)
        with pytest.raises(TimeoutError):
            blocked.result(0.1)
        store.open.set()
        assert blocked.result(20).result(20) == first.result(20) == busy.result(20) == 1


def test_append_blocked_by_others_is_told_that_the_buffer_closes(
    busy: Future, writer: GroupCommit, send: Send, store: Held
) -> None:
    send(1, size=CAP)
    with ThreadPoolExecutor(2) as pool:
        blocked = pool.submit(send, 1, size=1)
        with pytest.raises(TimeoutError):
            blocked.result(0.1)
        closing = pool.submit(writer.close)
        with pytest.raises(RftError, match="is closed; nothing of this append is stored"):
            blocked.result(20)
        store.open.set()
        closing.result(20)
    assert store.batches == [[1], [1]]  # all that was taken is stored


def test_commit_takes_appends_in_order_and_at_most_512_rows_unless_one_has_more(
    busy: Future, send: Send, store: Held
) -> None:
    futures = [send(n) for n in (300, 212, 1, 511, 1, 600, 2, 3)]
    store.open.set()
    assert [future.result(FAR) for future in futures] == [300, 212, 1, 511, 1, 600, 2, 3]
    assert store.batches == [[1], [300, 212], [1, 511], [1], [600], [2, 3]]


@pytest.mark.parametrize("hurry", ["an urgent append", "512 rows", "close"])
def test_append_that_is_not_urgent_waits_for_others(store: Held, rows: pa.Table, hurry: str) -> None:
    store.open.set()
    writer = GroupCommit(store.commit, linger_s=FAR)
    before = Pending(rows.slice(0, 1), urgent=True)
    writer.submit(before, 1.0)
    assert before.future.result(20) == 1
    first = Pending(rows.slice(0, 4), urgent=False)
    second = Pending(rows.slice(0, 508 if hurry == "512 rows" else 2), urgent=hurry == "an urgent append")
    store.begun.clear()
    writer.submit(first, 1.0)
    assert not store.begun.wait(0.1)
    if hurry != "close":
        writer.submit(second, 1.0)
        assert first.future.result(10) == 4
    writer.close()
    assert store.batches[1:] == [[4] if hurry == "close" else [4, second.brought]]


@pytest.mark.slow
def test_commit_that_fails_fails_its_appends_alone_and_nobody_waits_after_it(
    busy: Future, send: Send, store: Held
) -> None:
    bad, good = send(599), send(2)
    store.open.set()
    with pytest.raises(RftError, match="the disk is full"):
        bad.result(20)
    assert good.result(20) == 2
    for _ in range(3):
        assert send(1, urgent=True).result(20) == 1


class Torn(list):
    """Values that break when they are read, as those of a device that is lost."""

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("the device is gone")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["b", "ab", "ba", "abba", "bb", "aab"])
def test_append_that_cannot_be_prepared_fails_alone_and_nobody_waits_after_it(
    buffer: Buffer, order: str
) -> None:
    buffer.append([make_experience(0)])
    with buffer._store.locked("experiences"):  # so that the next ones share a batch
        ahead = buffer.submit([make_experience(1)])
        sent = []
        for number, kind in enumerate(order, start=2):
            broken = {"version_spans": Torn()} if kind == "b" else {}
            sent.append(buffer.submit([make_experience(number, **broken)]))
    assert ahead.result(20).stored == 1
    for kind, future in zip(order, sent, strict=True):
        if kind == "b":
            with pytest.raises(RuntimeError, match="the device is gone"):
                future.result(20)
        else:
            assert future.result(20).stored == 1
    for number in range(10, 13):
        assert buffer.append([make_experience(number)], deadline_s=20).stored == 1
    assert len(buffer) == 5 + order.count("a")


def test_a_slice_counts_its_own_bytes_and_not_those_of_its_table(rows: pa.Table) -> None:
    text = pa.array(["x" * 10_000] * len(rows))
    place = INCOMING.get_field_index("completion_text")
    wide = rows.set_column(place, INCOMING.field("completion_text"), text)
    assert Pending(wide, False).size > 6_000_000
    assert 10_000 < Pending(wide.slice(7, 1), False).size < 12_000


def test_objects_count_as_much_as_they_hold_in_memory() -> None:
    row = make_experience(0, token_ids=[1] * 1000, completion_text="x" * 5000)
    assert Pending((row, row), False).size == 2 * (2048 + 24 * 1000 + 2 * 5000)
    bare = make_experience(1, token_ids=None, completion_text=None)
    assert Pending((bare,), False).size == 2048
    assert group_commit.MAX_WAITING_BYTES == CAP
