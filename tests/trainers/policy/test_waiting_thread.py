"""One thread that waits between orders: order of work, errors, deadlines, closing."""

from __future__ import annotations

import threading

import pytest

from rft_data.core.errors import StalledError
from trainers.policy.waiting_thread import WaitingThread


def test_orders_run_one_at_a_time_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []

    def body() -> None:
        while (order := thread.next_order()) is not None:
            seen.append((order, threading.get_ident()))

    thread: WaitingThread[int] = WaitingThread("worker", body, 10.0)
    for order in range(3):
        thread.carry_out(order)
        assert len(seen) == order + 1
    thread.close()
    assert [order for order, _ in seen] == [0, 1, 2]
    assert {ident for _, ident in seen} != {threading.get_ident()}
    assert len({ident for _, ident in seen}) == 1


def test_order_raises_the_very_error_of_the_body() -> None:
    error = KeyError("reward")

    def body() -> None:
        thread.next_order()
        raise error

    thread: WaitingThread[int] = WaitingThread("worker", body, 10.0)
    with pytest.raises(KeyError) as caught:
        thread.carry_out(1)
    assert caught.value is error
    thread.close()


def test_order_returns_when_the_body_ends_by_itself() -> None:
    thread: WaitingThread[int] = WaitingThread("worker", lambda: None, 10.0)
    thread.carry_out(1)
    thread.close()


def test_order_and_close_past_the_deadline_raise_stalled_error() -> None:
    release = threading.Event()

    def body() -> None:
        thread.next_order()
        release.wait(30)

    thread: WaitingThread[int] = WaitingThread("worker", body, 0.05)
    with pytest.raises(StalledError, match=r"worker has not finished in 0\.05 s"):
        thread.carry_out(1)
    with pytest.raises(StalledError, match=r"worker has not ended in 0\.05 s"):
        thread.close()
    release.set()
    thread.close()


def test_close_before_the_first_order_starts_no_thread_and_is_idempotent() -> None:
    ran = threading.Event()
    thread: WaitingThread[int] = WaitingThread("worker", ran.set, 10.0)
    thread.close()
    thread.close()
    assert not ran.is_set()
