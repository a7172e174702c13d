"""A task's record: what counts as evidence, how old it is, and its sum over a window."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.run.rejudge import readmit
from rft_data.tasks.record import PLAYED, played, tally
from rft_data.tasks.table import task_table
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.rejudge.explored import LENIENT, explore, pipeline
from tests.rft_data.tasks.conftest import make_tasks


def counts(buffer: Buffer, tasks, window=None, **chosen):
    passes, rollouts = tally(task_table(tasks, played(buffer, **chosen)), window)
    return list(zip(passes.tolist(), rollouts.tolist(), strict=True))


def test_a_task_never_played_has_no_rollouts(buffer):
    assert counts(buffer, make_tasks(2)) == [(0.0, 0), (0.0, 0)]
    assert tally(task_table(make_tasks(2)), None)[1].tolist() == [0, 0]
    assert tally(task_table([]), None)[1].tolist() == []


@pytest.mark.slow
def test_only_groups_that_arrived_and_rewards_that_are_known_count(buffer, play):
    tasks = make_tasks(3)
    play(tasks[0], [1.0, 0.0, None])
    play(tasks[0], [1.0, 1.0], outcome="failed")
    play(tasks[0], [1.0, 1.0], outcome="cancelled")
    play(tasks[1], [None, None])
    play(tasks[2], [0.25, 2.0, -1.0])
    assert counts(buffer, tasks) == [(1.0, 2), (0.0, 0), (1.25, 3)]


@pytest.mark.slow
def test_expert_and_evaluation_rows_are_no_evidence_but_imported_ones_are(buffer):
    [task] = make_tasks(1)
    named = {"taskset": task.taskset, "task_id": task.task_id}
    sources = ["import", "import", "expert", "eval", "probe"]
    rewards = [1.0, None, 1.0, 1.0, 1.0]
    buffer.append(
        [
            make_experience(n, source=source, reward=reward, **named)
            for n, (source, reward) in enumerate(zip(sources, rewards, strict=True))
        ]
    )
    assert counts(buffer, [task]) == [(1.0, 1)]
    assert counts(buffer, [task], window=100) == [(0.0, 0)], "no weights of ours sampled it"
    assert counts(buffer, [task], run_id="run") == [(0.0, 0)]


@pytest.mark.slow
def test_groups_set_aside_do_not_count(buffer, play):
    [task] = make_tasks(1)
    play(task, [1.0])
    stale = play(task, [0.0, 0.0])
    assert counts(buffer, [task], set_aside={stale}) == [(1.0, 1)]


@pytest.mark.slow
def test_age_is_counted_in_steps_from_the_newest_group_of_each_run(buffer, play):
    tasks = make_tasks(2)
    play(tasks[0], [1.0], version=3)
    play(tasks[0], [0.0], version=5)
    play(tasks[1], [1.0], version=5)
    play(tasks[1], [1.0], version=40, run_id="other")
    assert counts(buffer, tasks, window=1) == [(0.0, 1), (2.0, 2)]
    assert counts(buffer, tasks, window=2) == [(0.0, 1), (2.0, 2)]
    assert counts(buffer, tasks, window=3) == [(1.0, 2), (2.0, 2)]
    assert counts(buffer, tasks, window=1, run_id="other") == [(0.0, 0), (1.0, 1)]


@pytest.mark.slow
def test_a_restart_which_leaves_a_gap_in_the_versions_makes_nothing_older(buffer, play):
    [task] = make_tasks(1)
    for version, step in ((0, 0), (1, 1), (4, 1), (5, 2)):
        row = {
            "run_id": "run",
            "version": version,
            "step": step,
            "path": "",
            "manifest_digest": "",
            "rows": 0,
        }
        buffer.add_rows("versions", [row])
    for version in (0, 1, 4, 5):
        play(task, [1.0], version=version)
    assert [counts(buffer, [task], window=window)[0][1] for window in (1, 2, 3)] == [1, 3, 4]


@pytest.mark.slow
def test_a_group_that_was_readmitted_into_another_book_counts_once(buffer):
    first, *_ = explore(buffer, [[1.0, 1.0], [1.0, 0.0]])
    found = readmit(buffer, "run", "book", pipeline(LENIENT, buffer), groups_per_batch=2)
    assert found.admitted == 1
    record = {row["task_id"]: row for row in played(buffer).to_pylist()}
    assert record[first.task.task_id]["played_rollouts"] == [2]
    assert record.keys() == {"t0", "t1"}
    assert played(buffer, run_id="book")["played_rollouts"].to_pylist() == [[2]]


@pytest.mark.slow
@given(
    groups=st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, 9), st.lists(st.none() | st.floats(-1, 2, width=32), max_size=4)
        ),
        max_size=20,
    ),
    window=st.none() | st.integers(1, 12),
)
def test_tally_is_the_plain_sum_over_the_window(groups, window):
    tasks = make_tasks(5)
    rows = [
        {
            "group_id": f"g{n}",
            "run_id": "run",
            "taskset": "sums",
            "task_id": tasks[place].task_id,
            "version_min": version,
            "rewards": rewards,
        }
        for n, (place, version, rewards) in enumerate(groups)
    ]

    class Stored:
        def read(self, name, columns=None, where=None, limit=None):
            numbers = {"version_min": pa.int64(), "version": pa.int64(), "step": pa.int64()}
            kinds = {**numbers, "rewards": pa.list_(pa.float32())}
            schema = pa.schema([(column, kinds.get(column, pa.string())) for column in columns])
            return pa.Table.from_pylist(rows if name == "groups" else [], schema=schema)

    newest = max((version for _, version, _ in groups), default=0)
    passes, rollouts = tally(task_table(tasks, played(Stored(), run_id="run")), window)
    for place in range(5):
        known = [
            min(max(reward, 0.0), 1.0)
            for at, version, rewards in groups
            for reward in rewards
            if at == place and reward is not None and (window is None or newest - version < window)
        ]
        assert rollouts[place] == len(known)
        assert passes[place] == pytest.approx(sum(known))


def test_the_columns_survive_a_trip_through_python_lists():
    table = task_table(make_tasks(3))
    plain = pa.table({name: table[name].to_pylist() for name in PLAYED.names})
    assert np.array_equal(tally(plain, 3)[1], [0, 0, 0])
