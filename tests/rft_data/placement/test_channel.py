"""Messages survive any way of being cut up."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_data.placement.channel import Line, Messages, message

SENT = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=6)


@pytest.mark.slow
@given(SENT, st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_messages_arrive_as_sent_however_they_are_cut(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    travelling = b"".join(message(number, content) for number, content in sent)
    messages, arrived, at = Messages(), [], 0
    for n in range(len(travelling)):
        if at >= len(travelling):
            break
        part = travelling[at : at + cuts[n % len(cuts)]]
        arrived += list(messages.feed(part))
        at += len(part)
    assert arrived == sent


def test_a_line_is_shared_by_many_threads_and_ends_with_its_other_end() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    line, listener = Line(theirs), Line(ours)
    content = b"x" * 300_000  # more than a socket holds, so that a sender is interrupted
    senders = [threading.Thread(target=line.send, args=(n, content + bytes([n]))) for n in range(8)]
    for sender in senders:
        sender.start()
    received = [arrived for _, arrived in zip(range(8), listener.received(), strict=False)]
    for sender in senders:
        sender.join()
    assert sorted(received) == [(n, content + bytes([n])) for n in range(8)]
    theirs.close()
    assert list(listener.received()) == []
