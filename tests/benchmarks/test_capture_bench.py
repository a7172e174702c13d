"""The parts of the capture benchmark that need no server."""

from __future__ import annotations

import pytest

from benchmarks.capture import scripted


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
def test_an_agent_of_ten_turns_is_one_row_and_loses_nothing(thinks: bool) -> None:
    found = scripted.agents(2, thinks=thinks)
    assert found["rows_per_rollout"] == 1.0
    assert found["ids_lost"] == 0
    assert found["ms"] > 0
