"""length_shaping_mapper against the three papers' formulas, group by group."""

import math
import statistics
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

rows = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 12)),
    min_size=1,
    max_size=40,
)


def table_of(rows):
    masks = [[0] + [1] * length for _, _, length in rows]
    return pa.table(
        {
            "group_id": [f"g{g}" for g, _, _ in rows],
            "reward": pa.array([reward for _, reward, _ in rows], pa.float32()),
            "action_mask": pa.array(masks, pa.list_(pa.int8())),
        }
    )


def kimi(reward, length, known, correct, weight):
    shortest, longest = min(known), max(known)
    share = 0.0 if shortest == longest else 0.5 - (length - shortest) / (longest - shortest)
    return reward + weight * (share if reward >= 1 else min(0.0, share))


def z_score(length, correct):
    spread = statistics.pstdev(correct) if len(set(correct)) > 1 else 0.0
    return (length - statistics.fmean(correct)) / spread if spread else 0.0


def efficient(reward, length, known, correct, weight):
    return reward * (1 - weight / (1 + math.exp(-z_score(length, correct)))) if reward >= 1 else reward


def lead(reward, length, known, correct, weight):
    return reward * math.exp(-weight * z_score(length, correct)) if reward >= 1 else reward


@pytest.mark.slow
@pytest.mark.parametrize("rule", [kimi, efficient, lead])
@given(rows=rows, weight=st.sampled_from([0.1, 0.5, 1.0]))
def test_shaped_reward_equals_the_papers(operator, rule, rows, weight):
    known, correct = defaultdict(list), defaultdict(list)
    for group, reward, length in rows:
        if reward is not None:
            known[group].append(length)
            if reward >= 1:
                correct[group].append(length)
    op = operator("length_shaping_mapper", rule=rule.__name__, weight=weight)
    got = op.process_table(table_of(rows))["shaped_reward"].to_pylist()
    for value, (group, reward, length) in zip(got, rows, strict=True):
        if reward is None:
            assert value is None
        else:
            want = rule(reward, length, known[group], correct[group], weight)
            assert value == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("rule", ["kimi", "efficient", "lead"])
def test_of_a_rollout_of_several_turns_the_sum_of_its_lengths_counts(operator, rule):
    """Three rollouts of 1 to 3 turns, in mixed order, against the same rollouts as one row each."""
    turns = [  # member, turn, reward, length
        (1, 1, 1.0, 5),
        (0, 0, None, 3),
        (2, 0, 1.0, 9),
        (1, 0, 0.25, 2),
        (0, 2, 1.0, 3),
        (0, 1, None, 4),
    ]
    table = table_of([(0, reward, length) for _, _, reward, length in turns])
    table = table.append_column("member", pa.array([member for member, *_ in turns], pa.int32()))
    table = table.append_column("turn", pa.array([turn for _, turn, *_ in turns], pa.int32()))
    op = operator("length_shaping_mapper", rule=rule, weight=0.5)
    whole = op.process_table(table_of([(0, 1.0, 10), (0, 1.0, 7), (0, 1.0, 9)]))["shaped_reward"].to_pylist()
    shaped = op.process_table(table)["shaped_reward"].to_pylist()
    assert shaped == [whole[1], None, whole[2], 0.25, whole[0], None]


def test_a_rollout_with_a_turn_of_unknown_length_is_refused(operator):
    table = table_of([(0, None, 3), (0, 1.0, 4)])
    table = table.append_column("member", pa.array([0, 0])).append_column("turn", pa.array([0, 1]))
    masks = pa.array([None, [1, 1]], pa.list_(pa.int8()))
    table = table.set_column(2, "action_mask", masks)
    with pytest.raises(ValueError, match="not all its tokens are known"):
        operator("length_shaping_mapper", rule="kimi", weight=0.5).process_table(table)


def test_kimi_never_rewards_a_short_wrong_answer(operator):
    table = table_of([(0, 0.0, 1), (0, 1.0, 2), (0, 0.0, 3)])
    shaped = operator("length_shaping_mapper", rule="kimi", weight=1.0).process_table(table)["shaped_reward"]
    assert shaped.to_pylist() == [0.0, 1.0, -0.5]


@pytest.mark.parametrize("rule", ["kimi", "efficient", "lead"])
def test_group_of_one_keeps_the_rule_finite(operator, rule):
    out = operator("length_shaping_mapper", rule=rule, weight=0.5).process_table(table_of([(0, 1.0, 7)]))
    assert out["shaped_reward"].to_pylist() == [0.75 if rule == "efficient" else 1.0]


@pytest.mark.parametrize(("rule", "weight"), [("cosine", 0.5), ("kimi", 0.0), ("efficient", 1.5)])
def test_bad_arguments_are_refused(operator, rule, weight):
    with pytest.raises(ValueError, match="wanted rule kimi, efficient, lead"):
        operator("length_shaping_mapper", rule=rule, weight=weight)
