"""dynamic_sampling_filter against a plain count, and its refill through the real sampler and loop."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.groups import Played
from rft_data.core.rows import TaskKey
from rft_data.loop.closing import group_results
from tests.rft_data.sampler.memory import House

rows = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.sampled_from([0.0, 0.25, 0.9, 1.0])), min_size=1, max_size=40
)
bounds = st.sampled_from([(0.0, 1.0), (0.0, 0.5), (0.25, 0.75), (0.5, 1.0)])


@pytest.mark.slow
@given(rows=rows, correct=st.sampled_from([0.9, 1.0]), bounds=bounds)
def test_keep_equals_counting(operator, rows, correct, bounds):
    low, high = bounds
    groups = [f"g{g}" for g, _ in rows]
    table = pa.table({"group_id": groups, "reward": pa.array([r for _, r in rows], pa.float32())})
    scored, solved = defaultdict(int), defaultdict(int)
    for group, reward in zip(groups, (r for _, r in rows), strict=True):
        scored[group] += reward is not None
        solved[group] += reward is not None and reward >= correct
    expected = [scored[g] > 0 and low * scored[g] < solved[g] < high * scored[g] for g in groups]
    judgement = operator(
        "dynamic_sampling_filter", correct=correct, min_accuracy=low, max_accuracy=high
    ).judge(table)
    assert judgement.keep.tolist() == expected
    assert len(judgement.reasons) == expected.count(False)


def test_reasons_count_the_group(experiences, operator):
    table = experiences(["g", "g", "h", "i", "i"], [1.0, 1.0, 0.0, None, None])
    judgement = operator("dynamic_sampling_filter").judge(table)
    assert judgement.reasons == [
        *["2 of 2 rollouts of the group are correct: not in (0, 1)"] * 2,
        "0 of 1 rollouts of the group are correct: not in (0, 1)",
        *["no rollout of the group has a reward"] * 2,
    ]


def test_a_rollout_of_several_turns_counts_once_by_its_last(operator):
    table = pa.table(
        {
            "group_id": ["g"] * 4,
            "member": [0, 0, 0, 1],
            "turn": [2, 0, 1, 0],
            "reward": pa.array([0.0, 1.0, 1.0, 1.0], pa.float32()),
        }
    )
    judgement = operator("dynamic_sampling_filter", max_accuracy=0.6).judge(table)
    assert judgement.keep.tolist() == [True] * 4  # 1 of 2, not 3 of 4


def test_two_rows_of_the_same_turn_are_refused(operator):
    table = pa.table({"group_id": ["g"] * 2, "member": [0, 0], "turn": [0, 0], "reward": [0.0, 1.0]})
    with pytest.raises(ValueError, match="turn 0 of member 0"):
        operator("dynamic_sampling_filter").judge(table)


def test_bounds_that_keep_nothing_are_refused(operator):
    with pytest.raises(ValueError, match=r"min_accuracy is 0.5 and max_accuracy 0.5"):
        operator("dynamic_sampling_filter", min_accuracy=0.5, max_accuracy=0.5)


@pytest.mark.slow
def test_dropped_groups_are_refilled_and_slow_tasks_wait_their_turn(experiences):
    """Every second group is all right; each third is slow and comes home last, yet none is starved."""
    pipeline = OperatorPipeline([{"dynamic_sampling_filter": {}}, {"grpo_advantage_mapper": {}}], name="ops")
    house, steps = House("fifo", groups=4, bound=0), 6
    trained: list[int] = []
    for step in range(steps):
        lease = None
        while lease is None:
            tickets = house.sampler.admit(8, house.versions.latest)
            assert tickets, "neither a lease nor room to start groups: starved"
            slow_last = sorted(tickets, key=lambda ticket: ticket.ordinal % 3 == 0)
            for ticket in slow_last:
                close_judged(house, pipeline, experiences, ticket)
            lease = house.lease(step)
        ordinals = [int(g.rsplit("-", 1)[1]) for g in lease.group_ids]
        assert len(ordinals) == 4  # a full batch, although half of what was started is dropped
        assert all(ordinal % 2 for ordinal in ordinals)
        trained += ordinals
        house.sampler.settle(lease)
        house.versions.issue(step + 1)
    counts = house.sampler.conservation()
    assert trained == sorted(trained) == list(range(1, 2 * len(trained), 2))  # slow ones in their place
    assert counts["dropped"] >= len(trained) - 1
    assert counts["stale"] == counts["cancelled"] == 0


def close_judged(house, pipeline, experiences, ticket):
    """A group of two comes home, is judged by the real operators, and closes its ticket."""
    rewards = [1.0, 1.0] if ticket.ordinal % 2 == 0 else [1.0, 0.0]
    table = experiences([ticket.group_id] * 2, rewards)
    table = table.set_column(
        table.column_names.index("seq"), "seq", pa.array([2 * ticket.ordinal, 2 * ticket.ordinal + 1])
    )
    version = pa.array([ticket.version] * 2, pa.int64())
    table = table.set_column(table.column_names.index("version_min"), "version_min", version)
    played = Played(ticket, TaskKey("a", "t"), "arrived", tuple(table["seq"].to_pylist()), 2)
    [result] = group_results([played], table, pipeline.run(table))
    assert result.dropped_by == ("" if rewards[1] == 0.0 else "dynamic_sampling_filter")
    house.history.append(result)
    house.sampler.close(result)
