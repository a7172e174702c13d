"""reward_shaping_mapper against the sum written out, over columns, JSON parts and Data-Juicer's stats."""

import json
import statistics

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import OperatorError

value = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(-3, 3, width=32)
rows = st.lists(st.tuples(st.integers(0, 3), st.none() | value, value, value), min_size=1, max_size=30)


def table_of(rows):
    return pa.table(
        {
            "group_id": [f"g{g}" for g, *_ in rows],
            "reward": pa.array([reward for _, reward, _, _ in rows], pa.float32()),
            "reward_parts": [
                json.dumps({"format": part, "accuracy": 1}) if reward is not None else "{}"
                for _, reward, part, _ in rows
            ],
            "novelty": pa.array([novelty for *_, novelty in rows], pa.float64()),
        }
    )


@pytest.mark.slow
@given(rows=rows, normalize=st.sampled_from(["none", "group"]), clip=st.sampled_from([None, (-0.5, 0.75)]))
def test_shaped_reward_equals_the_sum(operator, rows, normalize, clip):
    weights = {"reward": 1.0, "reward_parts/format": 0.5, "novelty": -2.0}
    op = operator("reward_shaping_mapper", weights=weights, normalize=normalize, clip=clip)
    out = op.process_table(table_of(rows))["shaped_reward"]
    assert out.type == pa.float32()
    for got, (group, reward, part, novelty) in zip(out.to_pylist(), rows, strict=True):
        if reward is None:
            assert got is None
            continue
        peers = [row[1:] for row in rows if row[0] == group and row[1] is not None]
        want = 0.0
        for weight, x, column in zip(
            weights.values(), (reward, part, novelty), zip(*peers, strict=True), strict=True
        ):
            if normalize == "group":
                spread = statistics.stdev(column) if len(set(column)) > 1 else 0.0
                x = (x - statistics.fmean(column)) / (spread + 1e-4) if spread else 0.0
            want += weight * x
        want = want if clip is None else min(max(want, clip[0]), clip[1])
        assert got == pytest.approx(want, rel=1e-4, abs=1e-4)


def test_what_operators_measured_can_be_weighed(experiences):
    ops = [
        {"text_length_filter": {"min_len": 1}},
        {"pass_rate_mapper": {}},
        {"reward_shaping_mapper": {"weights": {"reward": 1, "pass_rate": -1, "__dj__stats__/text_len": 0.1}}},
        {"grpo_advantage_mapper": {"scale": "none"}},
    ]
    out = OperatorPipeline(ops, name="experience_ops").run(experiences(["g", "g"], [0.0, 1.0], ["a", "abc"]))
    assert out["shaped_reward"].to_pylist() == pytest.approx([-0.4, 0.8])
    assert out["advantage"].to_pylist() == [pytest.approx([-0.6]), pytest.approx([0.6])]


def test_a_missing_term_quarantines_only_its_group(experiences):
    table = experiences(["g", "g", "h", "h"], [0.0, 1.0, 0.0, 1.0])
    parts = pa.array(['{"format": 1.0}', '{"format": 0.5}', '{"format": 1.0}', "{}"])
    table = table.set_column(table.column_names.index("reward_parts"), "reward_parts", parts)
    op = {"reward_shaping_mapper": {"weights": {"reward_parts/format": 1.0}}}
    out = OperatorPipeline([op], name="experience_ops").run(table)
    assert out["verdict"].to_pylist() == ["kept", "kept", "quarantined", "quarantined"]
    assert "1 of 2 rows have a reward but no 'reward_parts/format'" in out["reason"][2].as_py()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"weights": {}}, "at least one term"),
        ({"weights": {"reward": float("inf")}}, "finite weights"),
        ({"weights": {"reward": 1.0}, "normalize": "batch"}, "normalize is 'batch'"),
        ({"weights": {"reward": 1.0}, "clip": (1.0, 1.0)}, "clip is"),
    ],
)
def test_bad_arguments_are_refused(operator, args, message):
    with pytest.raises(ValueError, match=message):
        operator("reward_shaping_mapper", **args)


PENALTY = {"overlong_penalty_mapper": {"max_tokens": 4, "cache_tokens": 4}}


def shaped(experiences, *operators):
    table = experiences(["g"] * 3, [1.0, 0.0, None])
    return OperatorPipeline(operators, name="experience_ops").run(table)["shaped_reward"].to_pylist()


def test_it_never_discards_what_an_operator_before_it_shaped(experiences):
    anew = {"reward_shaping_mapper": {"weights": {"reward": 2.0}}}
    on_top = {"reward_shaping_mapper": {"weights": {"shaped_reward": 2.0}}}
    assert shaped(experiences, PENALTY) == [0.5, -0.5, None]
    assert shaped(experiences, PENALTY, on_top) == [1.0, -1.0, None]
    assert shaped(experiences, anew, PENALTY) == [1.5, -0.5, None]
    with pytest.raises(OperatorError, match=r"would overwrite.*terms \['reward'\].*put it before"):
        shaped(experiences, PENALTY, anew)


def test_a_shaped_reward_without_a_value_may_be_overwritten(operator):
    table = table_of([(0, 1.0, 0.0, 0.0)]).append_column("shaped_reward", pa.nulls(1, pa.float32()))
    out = operator("reward_shaping_mapper", weights={"reward": 3.0}).process_table(table)
    assert out["shaped_reward"].to_pylist() == [3.0]
