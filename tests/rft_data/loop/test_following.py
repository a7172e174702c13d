from pathlib import Path

import pytest

from benchmarks.crash.pipeline import CentredReward
from rft_data.buffer import Buffer
from rft_data.core.words import GroupState
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.fleet import Fleet
from rft_data.loop.following import Following
from rft_data.sampler import make_sampler
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.tasks.selectors import Nothing
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.conftest import make_experience


def group(ordinal: int, outcome: str = "arrived", attempt: int = 0) -> dict[str, object]:
    return {
        "group_id": f"r/{attempt}-{ordinal:08d}",
        "run_id": "r",
        "ordinal": ordinal,
        "round": 0,
        "attempt": attempt,
        "taskset": "a",
        "task_id": "t",
        "version": 0,
        "version_min": 0,
        "outcome": outcome,
        "rewards": [1.0],
        "seqs": [ordinal] if outcome == "arrived" else [],
        "dropped_by": "",
        "error": "",
    }


@pytest.fixture
def following(tmp_path: Path) -> Following:
    buffer = Buffer(tmp_path / "buffer")
    versions = VersionRegistry(buffer, "r", tmp_path / "weights")
    versions.issue(0)
    sampler = make_sampler(
        "fifo",
        {},
        ledger=Ledger(buffer, "r", 0),
        versions=versions,
        consumer=CONSUMER,
        groups_per_step=2,
        max_staleness=None,
    )
    closer = GroupCloser(buffer, CentredReward(), "r", 0, 1, explored_elsewhere=True)
    fleet = Fleet([], versions, whole_rounds=True, deadline_s=1.0)
    return Following(closer, sampler, Dispatcher(Nothing(), {}), fleet, planned=4)


@pytest.mark.slow
def test_groups_of_another_run_are_leased_as_they_come(following: Following) -> None:
    buffer, sampler = following.closer.buffer, following.sampler
    following.collect()
    assert (following.waiting, sampler.ready) == (4, 0)
    buffer.add_rows("groups", [group(2), group(0)])
    following.collect()
    following.collect()
    assert (following.waiting, sampler.ready) == (2, 2)
    lease = sampler.lease(CONSUMER, 0, 2, 0)
    assert lease is not None
    assert lease.group_ids == ("r/0-00000000", "r/0-00000002")
    buffer.add_rows("groups", [group(1, "failed"), group(3, "cancelled")])
    following.collect()
    assert following.waiting == 1, "a group that was cancelled is played again"
    buffer.add_rows("groups", [group(4, attempt=1)])
    following.collect()
    assert (following.waiting, sampler.ready) == (0, 1)
    counts = sampler.conservation()
    assert counts["admitted"] == sum(n for state, n in counts.items() if state != "admitted") == 5
    assert counts[GroupState.LEASED] == 2


@pytest.mark.slow
def test_open_groups_of_the_other_run_are_left_alone(following: Following) -> None:
    buffer = following.closer.buffer
    buffer.append([make_experience(0, run_id="r", group_id="r/0-00000000")])
    assert following.closer.recover({}) == []
    assert buffer.counts()["groups"] == 0
