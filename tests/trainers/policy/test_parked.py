"""One thread, parked between turns: order of work, errors, deadlines, closing."""

from __future__ import annotations

import threading

import pytest

from rft_data.core.errors import StalledError
from trainers.policy.parked import ParkedThread


def test_turns_run_one_at_a_time_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []

    def body() -> None:
        while (order := thread.park()) is not None:
            seen.append((order, threading.get_ident()))

    thread: ParkedThread[int] = ParkedThread("worker", body, 10.0)
    for order in range(3):
        thread.turn(order)
        assert len(seen) == order + 1
    thread.close()
    assert [order for order, _ in seen] == [0, 1, 2]
    assert {ident for _, ident in seen} != {threading.get_ident()}
    assert len({ident for _, ident in seen}) == 1


def test_turn_raises_the_very_error_of_the_body() -> None:
    error = KeyError("reward")

    def body() -> None:
        thread.park()
        raise error

    thread: ParkedThread[int] = ParkedThread("worker", body, 10.0)
    with pytest.raises(KeyError) as caught:
        thread.turn(1)
    assert caught.value is error
    thread.close()


def test_turn_returns_when_the_body_ends_by_itself() -> None:
    thread: ParkedThread[int] = ParkedThread("worker", lambda: None, 10.0)
    thread.turn(1)
    thread.close()


def test_turn_and_close_past_the_deadline_raise_stalled_error() -> None:
    release = threading.Event()

    def body() -> None:
        thread.park()
        release.wait(30)

    thread: ParkedThread[int] = ParkedThread("worker", body, 0.05)
    with pytest.raises(StalledError, match=r"worker has not finished in 0\.05 s"):
        thread.turn(1)
    with pytest.raises(StalledError, match=r"worker has not ended in 0\.05 s"):
        thread.close()
    release.set()
    thread.close()


def test_close_before_the_first_turn_starts_no_thread_and_is_idempotent() -> None:
    ran = threading.Event()
    thread: ParkedThread[int] = ParkedThread("worker", ran.set, 10.0)
    thread.close()
    thread.close()
    assert not ran.is_set()
