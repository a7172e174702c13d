"""invalid_reward_filter: null, NaN, infinite and taken-back rewards go, each with its reason."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import RecipeError

rewards = st.lists(st.none() | st.floats(width=32), max_size=30)


@pytest.mark.slow
@given(rewards=rewards)
def test_keep_equals_finite(operator, rewards):
    table = pa.table({"reward": pa.array(rewards, pa.float32())})
    judgement = operator("invalid_reward_filter").judge(table)
    expected = [reward is not None and math.isfinite(reward) for reward in rewards]
    assert judgement.keep.tolist() == expected
    assert len(judgement.reasons) == expected.count(False)


def test_reasons_name_the_cause(operator):
    table = pa.table(
        {
            "reward": [1.0, None, None, math.nan, -math.inf, 0.5],
            "unscored_reason": [None, "grader timed out", None, None, "", "taken back"],
        }
    )
    judgement = operator("invalid_reward_filter").judge(table)
    assert judgement.keep.tolist() == [True, False, False, False, False, False]
    assert judgement.reasons == [
        "no reward: grader timed out",
        "no reward: not scored",
        "reward nan is not finite",
        "reward -inf is not finite",
        "reward 0.5 was not scored: taken back",
    ]


def test_put_first_it_saves_the_group_that_others_would_quarantine(experiences):
    table = experiences(["g"] * 3, [0.0, 1.0, float("nan")])
    later = {"grpo_advantage_mapper": {}}
    alone = OperatorPipeline([later], name="experience_ops").run(table)
    assert alone["verdict"].to_pylist() == ["quarantined"] * 3
    both = OperatorPipeline([{"invalid_reward_filter": {}}, later], name="experience_ops").run(table)
    assert both["verdict"].to_pylist() == ["kept", "kept", "dropped"]


def test_no_rows_give_no_verdicts(operator):
    judgement = operator("invalid_reward_filter").judge(pa.table({"reward": pa.array([], pa.float32())}))
    assert judgement.keep.tolist() == []
    assert list(judgement.reasons) == []


def test_unknown_argument_is_refused():
    with pytest.raises(RecipeError, match="unknown argument"):
        OperatorPipeline([{"invalid_reward_filter": {"low": 1}}], name="experience_ops")


def turns(rewards, causes):
    """Three rollouts of two turns, and a group of one row."""
    return pa.table(
        {
            "group_id": ["g"] * 6 + ["h"],
            "member": [0, 0, 1, 1, 2, 2, 0],
            "turn": [0, 1, 1, 0, 0, 1, 0],
            "reward": pa.array(rewards, pa.float32()),
            "unscored_reason": pa.array(causes, pa.string()),
        }
    )


def test_of_several_turns_the_last_reward_decides_for_all(operator):
    table = turns([None, 1.0, 0.0, None, 1.0, None, None], [None, None, None, "mid", None, "timed out", None])
    judgement = operator("invalid_reward_filter").judge(table)
    assert judgement.keep.tolist() == [True, True, True, True, False, False, False]
    assert judgement.reasons == [
        "another turn of its rollout was dropped: no reward: timed out",
        "no reward: timed out",
        "no reward: not scored",
    ]


def test_an_earlier_turn_that_others_would_refuse_takes_its_rollout_along(operator):
    table = turns([math.nan, 1.0, 0.0, 0.5, 1.0, 1.0, 1.0], [None] * 7)
    judgement = operator("invalid_reward_filter").judge(table)
    assert judgement.keep.tolist() == [False, False, True, True, True, True, True]
    later = operator("step_wise_advantage_mapper").process_table(table.filter(pa.array(judgement.keep)))
    assert later["advantage"].null_count == 0
