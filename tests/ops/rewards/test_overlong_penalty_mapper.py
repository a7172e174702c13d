"""overlong_penalty_mapper against equation 13 of DAPO, written out as the paper does."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

rows = st.lists(
    st.tuples(st.integers(0, 24), st.none() | st.floats(-2, 2, width=32), st.none() | st.just(0.5)),
    min_size=1,
    max_size=20,
)


def paper(length, longest, cache):
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@pytest.mark.slow
@given(rows=rows, cache=st.integers(1, 16), factor=st.sampled_from([1.0, 0.25]))
def test_shaped_reward_equals_the_papers(operator, rows, cache, factor):
    masks = [[0, 0] + [1] * length for length, _, _ in rows]
    table = pa.table(
        {
            "reward": pa.array([reward for _, reward, _ in rows], pa.float32()),
            "shaped_reward": pa.array([shaped for _, _, shaped in rows], pa.float32()),
            "action_mask": pa.array(masks, pa.list_(pa.int8())),
        }
    )
    op = operator("overlong_penalty_mapper", max_tokens=16, cache_tokens=cache, factor=factor)
    out = op.process_table(table)["shaped_reward"]
    assert out.type == pa.float32()
    for got, (length, reward, shaped) in zip(out.to_pylist(), rows, strict=True):
        used = reward if shaped is None else shaped
        want = None if used is None else used + factor * paper(length, 16, cache)
        assert got == (None if want is None else pytest.approx(want, abs=1e-6))


def test_environment_tokens_are_not_counted_and_ids_stand_in_for_a_missing_mask(operator):
    op = operator("overlong_penalty_mapper", max_tokens=4, cache_tokens=2)
    ids = pa.array([[9] * 6, [9] * 6], pa.list_(pa.int32()))
    masks = pa.array([[0, 1, 1, 0, 0, 1], None], pa.list_(pa.int8()))
    table = pa.table({"reward": [1.0, 1.0], "action_mask": masks, "token_ids": ids, "prompt_length": [1, 2]})
    assert op.process_table(table)["shaped_reward"].to_pylist() == [0.5, 0.0]  # 3 and 4 tokens


def test_a_reward_without_tokens_is_refused_and_a_row_without_either_passes(operator):
    op = operator("overlong_penalty_mapper", max_tokens=4, cache_tokens=2)
    none = pa.array([None], pa.list_(pa.int8()))
    with pytest.raises(ValueError, match="a reward but no tokens"):
        op.process_table(pa.table({"reward": [1.0], "action_mask": none}))
    unscored = pa.table({"reward": pa.array([None], pa.float32()), "action_mask": none})
    assert op.process_table(unscored)["shaped_reward"].to_pylist() == [None]


@pytest.mark.parametrize("args", [(4, 5, 1.0), (4, 0, 1.0), (4, 2, 0.0)])
def test_bad_arguments_are_refused(operator, args):
    longest, cache, factor = args
    with pytest.raises(ValueError, match="cache_tokens"):
        operator("overlong_penalty_mapper", max_tokens=longest, cache_tokens=cache, factor=factor)
