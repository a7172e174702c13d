"""grpo_advantage_mapper against an independent float64 computation, on shuffled ragged groups."""

import statistics
from collections import defaultdict

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

reward = st.none() | st.sampled_from([0.0, 0.1, 1.0]) | st.floats(-5, 5, width=32)
rows = st.lists(st.tuples(st.integers(0, 6), reward, reward), min_size=1, max_size=40)


def reference(groups, rewards, scale, eps):
    """The formula, group by group, with the statistics module."""
    every = [value for value in rewards if value is not None]
    spread = statistics.stdev(every) if len(every) > 1 else 0.0
    members = defaultdict(list)
    for group, value in zip(groups, rewards, strict=True):
        if value is not None:
            members[group].append(value)
    out = []
    for group, value in zip(groups, rewards, strict=True):
        known = members[group]
        if value is None:
            out.append(None)
        elif len(set(known)) < 2:
            out.append(0.0)
        else:
            centred = value - statistics.fmean(known)
            std = {"group": statistics.stdev(known), "batch": spread, "none": 1.0}[scale]
            out.append(centred / (std + (eps if scale != "none" else 0.0)))
    return out


@pytest.mark.slow
@given(rows=rows, scale=st.sampled_from(["group", "batch", "none"]), shaped=st.booleans())
@settings(deadline=None, max_examples=200)
def test_advantage_equals_reference(operator, rows, scale, shaped):
    groups = [f"g{g}" for g, _, _ in rows]
    columns = {"group_id": pa.array(groups), "reward": pa.array([r for _, r, _ in rows], pa.float32())}
    if shaped:
        columns["shaped_reward"] = pa.array([s for _, _, s in rows], pa.float32())
    table = pa.table(columns)
    out = operator("grpo_advantage_mapper", scale=scale).process_table(table)
    used = [
        s if s is not None else r
        for r, s in zip(
            table["reward"].to_pylist(),
            (table["shaped_reward"] if shaped else pa.nulls(len(rows))).to_pylist(),
            strict=True,
        )
    ]
    assert out.column_names == [*table.column_names, "advantage"]
    assert out.select(table.column_names).equals(table)
    assert out["advantage"].type == pa.list_(pa.float32())
    for got, want in zip(out["advantage"].to_pylist(), reference(groups, used, scale, 1e-4), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert got == pytest.approx([want], rel=1e-5, abs=1e-6)


def test_equal_rewards_and_group_of_one_get_exactly_zero(experiences, operator):
    table = experiences(["g", "g", "g", "h"], [0.1, 0.1, 0.1, 5.0])
    for scale in ("group", "none"):
        out = operator("grpo_advantage_mapper", scale=scale, eps=0.0).process_table(table)
        assert out["advantage"].to_pylist() == [[0.0]] * 4


def test_old_advantage_is_replaced_in_its_place(experiences, operator):
    op = operator("grpo_advantage_mapper")
    once = op.process_table(experiences(["g", "g"], [0.0, 1.0]))
    assert op.process_table(once).equals(once)


def test_reward_that_is_not_finite_is_refused(experiences, operator):
    with pytest.raises(ValueError, match="not finite"):
        operator("grpo_advantage_mapper").process_table(experiences(["g"] * 2, [1.0, float("inf")]))


def test_unknown_scale_is_refused(operator):
    with pytest.raises(ValueError, match="scale is 'row'"):
        operator("grpo_advantage_mapper", scale="row")


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantage_equals_the_tensors_that_trl_computes(experiences, operator, scale):
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randint(0, 2, (16, 8), generator=generator).float() + 0.5 * torch.rand(16, 8)
    table = experiences([f"g{i // 8}" for i in range(128)], rewards.reshape(-1).tolist())
    got = operator("grpo_advantage_mapper", scale=scale).process_table(table)["advantage"].to_pylist()
    # As GRPOTrainer computes them for scale_rewards "group", "batch" and "none".
    std = {"group": rewards.std(1, keepdim=True), "batch": rewards.std(), "none": torch.tensor(1.0 - 1e-4)}
    want = (rewards - rewards.mean(1, keepdim=True)) / (std[scale] + 1e-4)
    assert torch.allclose(torch.tensor(got)[:, 0], want.reshape(-1), rtol=1e-4, atol=1e-5)
