"""Many clients of one buffer in threads of one process, with and without a hub between."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rft_data.buffer import Appended, Buffer, group_commit
from rft_data.core.errors import StalledError
from rft_data.placement.hub import HubClient, HubServer
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import commits_held

THREADS, CALLS, ROWS = 8, 25, 3


def in_threads(act: Callable[[int], None]) -> None:
    """Run `act` in THREADS threads at once; raise what any of them raised."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait(30)
        act(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(run, range(THREADS), timeout=120):
            pass


def check(buffer: Buffer, acked: dict[int, list[Appended]]) -> None:
    """Every call of every thread answered once, rows dense and each there once."""
    expected = THREADS * CALLS * ROWS
    told = {}
    for thread, answers in acked.items():
        assert len(answers) == CALLS
        numbers = [n for call in range(CALLS) for n in named_numbers(thread, call)]
        told.update(zip(numbers, (seq for answer in answers for seq in answer.seqs), strict=True))
    assert sorted(told.values()) == list(range(expected))
    rows = buffer.read("experiences", ["seq", "member"]).to_pylist()
    assert {row["member"]: row["seq"] for row in rows} == told
    assert len(rows) == len(buffer) == expected
    assert sum(answer.stored for answers in acked.values() for answer in answers) == expected


def named_numbers(thread: int, call: int) -> range:
    first = (thread * CALLS + call) * ROWS
    return range(first, first + ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "submit"])
@pytest.mark.parametrize("served", [False, True])
def test_threads_each_get_their_own_rows_acknowledged_once(buffer: Buffer, kind: str, served: bool) -> None:
    acked: dict[int, list[Appended]] = {}
    with HubServer(buffer) as hub, HubClient(hub.address, hub.token) as client:
        sink = client if served else buffer

        def act(thread: int) -> None:
            calls = [[make_experience(n) for n in named_numbers(thread, call)] for call in range(CALLS)]
            if kind == "append":
                acked[thread] = [sink.append(rows) for rows in calls]
            else:
                futures = [sink.submit(rows) for rows in calls]
                acked[thread] = [future.result(60) for future in futures]

        in_threads(act)
    check(buffer, acked)


@pytest.mark.slow
def test_threads_that_send_the_same_rows_store_them_once(buffer: Buffer) -> None:
    seqs: dict[int, list[int | None]] = {}

    def act(thread: int) -> None:
        order = sorted(range(CALLS), key=lambda call: (call * (thread + 3)) % CALLS)
        found = {}
        for call in order:
            rows = named_numbers(0, call)
            found.update(zip(rows, buffer.append([make_experience(n) for n in rows]).seqs, strict=True))
        seqs[thread] = [found[n] for n in sorted(found)]

    in_threads(act)
    assert len(buffer) == CALLS * ROWS
    assert len({tuple(found) for found in seqs.values()}) == 1
    assert sorted(seqs[0]) == list(range(CALLS * ROWS))


def test_what_finds_no_room_in_time_is_told_so_and_not_stored(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_WAITING_BYTES", 1)
    futures = []

    def submit_all() -> None:
        for number in range(20):
            futures.append(buffer.submit([make_experience(number)], deadline_s=0.2))

    with commits_held(buffer):
        with pytest.raises(StalledError, match="and this one did not fit within"):
            submit_all()
        assert 1 <= len(futures) < 6
        assert not any(future.done() for future in futures)
    assert [future.result(30).stored for future in futures] == [1] * len(futures)
    assert len(buffer) == len(futures)
    assert buffer.append([make_experience(len(futures))]).stored == 1
