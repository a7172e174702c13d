"""The parts of the capture benchmark that need no server."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks.capture import scripted
from benchmarks.child import end_with_children


@pytest.mark.slow
@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
def test_an_agent_of_ten_turns_is_one_row_and_loses_nothing(thinks: bool) -> None:
    found = scripted.agents(2, thinks=thinks)
    assert found["rows_per_rollout"] == 1.0
    assert found["ids_lost"] == 0
    assert found["ms"] > 0


def test_a_benchmark_that_is_told_to_end_ends_like_one_that_failed() -> None:
    before = signal.getsignal(signal.SIGTERM)
    end_with_children()
    try:
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
