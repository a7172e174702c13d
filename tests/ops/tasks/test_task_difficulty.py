"""Difficulty, pass-rate and priority operators over tasks, against plain loops of their formulas."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.hygiene import registry
from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import OperatorError, RecipeError

RECORD = st.lists(st.tuples(st.none() | st.integers(0, 9), st.integers(1, 8), st.floats(0, 1)), max_size=4)


def table(records, levels=None, splits=None) -> pa.Table:
    """One task per record: (age, rollouts, share of passes) of each of its groups."""
    rows = len(records)
    return pa.table(
        {
            "taskset": ["set"] * rows,
            "difficulty": pa.array(levels or [None] * rows, pa.float64()),
            "split": splits or ["train"] * rows,
            "played_age": pa.array([[a for a, _, _ in r] for r in records], pa.list_(pa.int64())),
            "played_passes": pa.array([[n * p for _, n, p in r] for r in records], pa.list_(pa.float64())),
            "played_rollouts": pa.array([[n for _, n, _ in r] for r in records], pa.list_(pa.int64())),
        }
    )


def counted(record, window):
    inside = [(n, p) for age, n, p in record if window is None or (age is not None and age < window)]
    return sum(n * p for n, p in inside), sum(n for n, _ in inside)


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(RECORD, st.sampled_from([None, 1.0, 2.0])), min_size=1, max_size=8),
    window=st.none() | st.integers(1, 10),
    k=st.floats(0.5, 20),
)
def test_difficulty_is_the_smoothed_fail_rate(rows, window, k):
    records, levels = [record for record, _ in rows], [level for _, level in rows]
    op = registry().modules["task_difficulty_mapper"](window=window, prior_weight=k)
    made = op.process_table(table(records, levels))
    tallies = [counted(record, window) for record in records]
    assert made["rollouts"].to_pylist() == [n for _, n in tallies]
    if not any(n for _, n in tallies):
        assert made["difficulty"].to_pylist() == levels
        assert made["pass_rate"].null_count == len(rows)
        return
    overall = (sum(s for s, _ in tallies) + k / 2) / (sum(n for _, n in tallies) + k)
    for place, level in enumerate(levels):
        mates = [tallies[i] for i in range(len(rows)) if levels[i] == level]
        class_rate = (sum(s for s, _ in mates) + k * overall) / (sum(n for _, n in mates) + k)
        passes, rollouts = tallies[place]
        wanted = (passes + k * class_rate) / (rollouts + k)
        assert made["pass_rate"][place].as_py() == pytest.approx(wanted)
        assert made["difficulty"][place].as_py() == pytest.approx(1 - wanted)
        assert made["learnability"][place].as_py() == pytest.approx(wanted * (1 - wanted))


@pytest.mark.parametrize("levels", [[0.9] * 11 + [0.1] * 11, None])
def test_its_own_output_changes_nothing(operator, levels):
    op = operator("task_difficulty_mapper")
    records = [*[[(0, 8, 0.0)]] * 10, [], *[[(0, 8, 1.0)]] * 10, []]
    once = op.process_table(table(records, levels))
    assert op.process_table(once).equals(once)
    assert once["offline_difficulty"].to_pylist() == (levels or [None] * 22)
    if levels:
        assert once["difficulty"][10].as_py() > 0.8 > 0.2 > once["difficulty"][21].as_py()
    pipeline = OperatorPipeline([{"task_difficulty_mapper": {}}] * 2, name="task_ops", text_column="text")
    assert pipeline.run_tasks(table(records, levels)).table["difficulty"].equals(once["difficulty"])


def test_a_class_is_what_the_task_was_loaded_with(operator):
    rows = table([[(0, 8, 0.0)], [(0, 8, 1.0)], []], [0.31, 0.62, 0.93])
    loaded = rows.append_column("offline_difficulty", pa.array([1.0, 2.0, 1.0]))
    made = operator("task_difficulty_mapper").process_table(loaded)["difficulty"].to_pylist()
    wanted = operator("task_difficulty_mapper").process_table(
        rows.set_column(1, "difficulty", pa.array([1.0, 2.0, 1.0]))
    )
    assert made == wanted["difficulty"].to_pylist()
    assert made[2] > 0.6


def test_tasks_of_one_outcome_are_dropped_once_there_is_evidence(operator):
    records = [
        [(0, 16, 1.0)],
        [(0, 16, 0.0)],
        [(0, 15, 1.0)],
        [(0, 8, 1.0), (3, 8, 0.5)],
        [],
        [(None, 16, 1.0)],
    ]
    judgement = operator("task_pass_rate_filter").judge(table(records))
    assert judgement.keep.tolist() == [False, False, True, True, True, False]
    assert list(judgement.reasons) == [
        "solved: pass rate 1 of 16 rollouts",
        "unsolved: pass rate 0 of 16 rollouts",
        "solved: pass rate 1 of 16 rollouts",
    ]
    recent = operator("task_pass_rate_filter", window=2, min_rollouts=8).judge(table(records))
    assert recent.keep.tolist() == [False, False, False, False, True, True]
    bounded = operator("task_pass_rate_filter", min_pass_rate=0.75, max_pass_rate=0.9)
    assert bounded.judge(table(records[3:4])).keep.tolist() == [False], "bounds are exclusive"


def test_held_out_tasks_are_never_retired(operator):
    solved = [(0, 32, 1.0)]
    judgement = operator("task_pass_rate_filter").judge(table([solved, solved], splits=["heldout", "train"]))
    assert judgement.keep.tolist() == [True, False]


def test_priority_is_the_weighted_sum_of_scaled_columns(operator):
    rows = pa.table({"a": [1.0, 3.0, None, 2.0], "b": [7, 7, 7, 7], "c": [0.0, 1.0, 0.0, 1.0]})
    op = operator("task_priority_mapper", weights={"a": 2.0, "b": 5.0, "c": -1.0})
    assert op.process_table(rows)["priority"].to_pylist() == [2.5, 3.5, 3.5, 2.5]
    assert op.process_table(rows.slice(0, 0))["priority"].to_pylist() == []


def test_a_priority_of_an_unknown_column_is_an_error_and_not_a_lost_task():
    pipeline = OperatorPipeline(
        [{"task_priority_mapper": {"weights": {"nothing": 1}}}], name="task_ops", text_column="text"
    )
    with pytest.raises(OperatorError, match="nothing"):
        pipeline.run_tasks(pa.table({"text": ["x"]}))


def test_the_best_by_priority_can_be_selected():
    records = [[(0, 8, 1.0)], [(0, 8, 0.5)], [], [(0, 8, 0.0)]]
    pipeline = OperatorPipeline(
        [
            {"task_difficulty_mapper": {}},
            {"task_priority_mapper": {"weights": {"learnability": 1.0}}},
            {"topk_specified_field_selector": {"field_key": "priority", "topk": 2}},
        ],
        name="task_ops",
        text_column="text",
    )
    rows = table(records).append_column("text", pa.array(list("abcd")))
    assert sorted(pipeline.run_tasks(rows).kept.tolist()) == [1, 2]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("task_difficulty_mapper", {"window": 0}),
        ("task_difficulty_mapper", {"prior_weight": 0.0}),
        ("task_pass_rate_filter", {"min_pass_rate": 0.5, "max_pass_rate": 0.5}),
        ("task_pass_rate_filter", {"min_rollouts": 0}),
        ("task_pass_rate_filter", {"window": 0}),
        ("task_priority_mapper", {"weights": {}}),
    ],
)
def test_bad_arguments_are_recipe_errors(name, args):
    with pytest.raises(RecipeError, match=f"'{name}' does not accept"):
        OperatorPipeline([{name: args}], name="task_ops", text_column="text")


@pytest.mark.slow
def test_a_hundred_thousand_tasks_are_judged_at_once(operator):
    rows = 100_000
    lists = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), pa.array(np.zeros(rows, np.int64)))
    many = pa.table(
        {
            "taskset": ["set"] * rows,
            "played_age": lists,
            "played_passes": lists.cast(pa.list_(pa.float64())),
            "played_rollouts": pa.ListArray.from_arrays(
                np.arange(rows + 1, dtype=np.int32), pa.array(np.full(rows, 16))
            ),
        }
    )
    assert operator("task_pass_rate_filter").judge(many).keep.sum() == 0
    assert operator("task_difficulty_mapper").process_table(many)["rollouts"][0].as_py() == 16
