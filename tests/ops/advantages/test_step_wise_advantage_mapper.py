"""step_wise_advantage_mapper: each rollout counts once, by its last turn."""

import statistics

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline

rollouts = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 4), st.none() | st.sampled_from([0.0, 0.1, 1.0]), st.floats(-2, 2)
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.slow
@given(rollouts=rollouts, scale=st.sampled_from(["group", "none"]), seed=st.randoms(use_true_random=False))
def test_advantage_equals_grpo_over_the_last_turns(operator, rollouts, scale, seed):
    rows = [
        {"group_id": f"g{group}", "member": member, "turn": turn,
         "reward": last if turn == turns - 1 else other}
        for member, (group, turns, last, other) in enumerate(rollouts)
        for turn in range(turns)
    ]  # fmt: skip
    seed.shuffle(rows)
    schema = pa.schema(
        [("group_id", pa.string()), ("member", pa.int64()), ("turn", pa.int64()), ("reward", pa.float32())]
    )
    table = pa.Table.from_pylist(rows, schema=schema)
    stored = {m: pa.scalar(last, pa.float32()).as_py() for m, (_, _, last, _) in enumerate(rollouts)}
    out = operator("step_wise_advantage_mapper", scale=scale).process_table(table)
    for row in out.to_pylist():
        group = rollouts[row["member"]][0]
        peers = [stored[m] for m, rollout in enumerate(rollouts) if rollout[0] == group]
        known = [reward for reward in peers if reward is not None]
        mine = stored[row["member"]]
        if mine is None:
            assert row["advantage"] is None
            continue
        spread = statistics.stdev(known) if len(set(known)) > 1 else 0.0
        divisor = spread + 1e-4 if scale == "group" else 1.0
        want = (mine - statistics.fmean(known)) / divisor if spread else 0.0
        assert row["advantage"] == pytest.approx([want], rel=1e-5, abs=1e-6)


def test_one_row_a_rollout_is_plain_grpo(experiences):
    table = experiences(["g", "h"] * 4, [0.0, 1.0, 1.0, 1.0, 0.5, 1.0, None, 0.0])
    one, other = (
        OperatorPipeline([{name: {}}], name="experience_ops").run(table)["advantage"]
        for name in ("step_wise_advantage_mapper", "grpo_advantage_mapper")
    )
    assert one.equals(other)


def test_unknown_scale_is_refused(operator):
    with pytest.raises(ValueError, match="scale is 'batch'"):
        operator("step_wise_advantage_mapper", scale="batch")
