"""best_of_n_filter against sorting each group."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from tests.ops.rewards.groups import table_of

rows = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 5)),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@given(rows=rows, k=st.integers(1, 3), least=st.sampled_from([None, 0.1]))
def test_keep_equals_the_head_of_each_sorted_group(operator, rows, k, least):
    groups = defaultdict(list)
    for place, (group, reward, length) in enumerate(rows):
        if reward is not None:
            groups[group].append((-reward, length, place))
    wanted = {
        place
        for members in groups.values()
        for worth, _, place in sorted(members)[:k]
        if least is None or -worth >= least
    }
    judgement = operator("best_of_n_filter", k=k, min_reward=least).judge(table_of(rows))
    assert {i for i, kept in enumerate(judgement.keep) if kept} == wanted
    assert len(judgement.reasons) == len(rows) - len(wanted)


def test_reasons(operator):
    table = table_of([(0, 1.0, 3), (0, 1.0, 2), (0, None, 1), (1, 0.0, 1)])
    judgement = operator("best_of_n_filter", min_reward=0.5).judge(table)
    assert judgement.keep.tolist() == [False, True, False, False]
    assert judgement.reasons == ["place 2 of its group, 1 are kept", "no reward", "reward 0 is below 0.5"]


def test_answers_without_tokens_are_compared_by_their_characters(operator):
    table = pa.table(
        {
            "group_id": ["g", "g", "h", "h"],
            "experience_id": list("abcd"),
            "reward": [1.0] * 4,
            "action_mask": pa.array([None, [1], [1, 1], [1]], pa.list_(pa.int8())),
            "completion_text": ["short", "a longer answer", "x", "xyz"],
        }
    )
    assert operator("best_of_n_filter").judge(table).keep.tolist() == [True, False, False, True]


def test_rollouts_of_several_turns_stay_whole(operator):
    table = pa.table(
        {
            "group_id": ["g"] * 4,
            "member": [0, 1, 0, 1],
            "turn": [0, 0, 1, 1],
            "reward": pa.array([1.0, 0.0, 0.0, 1.0], pa.float32()),
        }
    )
    assert operator("best_of_n_filter").judge(table).keep.tolist() == [False, True, False, True]


def test_dropped_rows_stay_in_the_store_with_their_reason(experiences):
    table = experiences(["g"] * 3, [0.0, 1.0, 1.0])
    out = OperatorPipeline([{"best_of_n_filter": {}}], name="experience_ops").run(table)
    assert out["verdict"].to_pylist() == ["dropped", "kept", "dropped"]
    assert out["dropped_by"][0].as_py() == "best_of_n_filter"


def test_k_must_be_positive(operator):
    with pytest.raises(ValueError, match="k is 0"):
        operator("best_of_n_filter", k=0)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("shaped", [None, pa.float32(), pa.float64()])
@pytest.mark.parametrize("bound", [0.1, 0.7, 0.9])
def test_reward_equal_to_the_least_one_is_kept_however_it_is_stored(operator, kind, shaped, bound):
    table = pa.table({"group_id": ["g", "g"], "reward": pa.array([bound, bound - 1e-3], kind)})
    if shaped is not None:
        table = table.append_column("shaped_reward", pa.array([bound, None], shaped))
    keep = operator("best_of_n_filter", k=2, min_reward=bound).judge(table).keep
    assert keep.tolist() == [True, False]
