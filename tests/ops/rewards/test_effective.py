"""Every operator reads one reward: `shaped_reward` where it is set, else `reward`."""

import pyarrow as pa
import pytest

from ops import OPERATOR_MODULES
from ops.base import append_or_replace

ARGUMENTS = {
    "reward_range_filter": {"min_reward": 0.25, "max_reward": 0.75},
    "dynamic_sampling_filter": {"correct": 0.75},
    "pass_rate_mapper": {"correct": 0.75},
    "maxrl_advantage_mapper": {"correct": 0.75},
    "length_shaping_mapper": {"weight": 0.5, "correct": 0.75},
    "pass_at_k_advantage_mapper": {"k": 2, "correct": 0.75},
    "overlong_penalty_mapper": {"max_tokens": 2, "cache_tokens": 1},
    "best_of_n_filter": {"k": 2, "min_reward": 0.25},
    "down_sampling_filter": {"size": 2},
    "format_reward_mapper": {"boxed": True},
    "preference_pair_mapper": {"pairs": "all"},
}
OTHERS = {"feedback_mapper", "reward_shaping_mapper"}
"""These name the column they read in their arguments."""


def readers():
    return [
        name
        for name, module in OPERATOR_MODULES.items()
        if module.split(".")[1] in ("rewards", "advantages") and name not in OTHERS
    ]


@pytest.mark.parametrize("name", readers())
def test_a_shaped_reward_counts_as_if_it_were_the_stored_one(experiences, operator, name):
    groups = ["a"] * 4 + ["b"] * 4
    rewards = [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5, None]
    shaped = [0.0, 0.5, None, 1.0, 0.5, 0.5, None, 0.5]
    effective = [r if s is None else s for r, s in zip(rewards, shaped, strict=True)]
    op = operator(name, **ARGUMENTS.get(name, {}))
    table = append_or_replace(experiences(groups, rewards), "member", pa.array([0, 1, 2, 3] * 2))
    judged = append_or_replace(table, "shaped_reward", pa.array(shaped, pa.float32()))
    plain = append_or_replace(table, "reward", pa.array(effective, pa.float32()))
    plain = append_or_replace(plain, "unscored_reason", pa.nulls(len(groups), pa.string()))
    if hasattr(op, "judge"):
        one, other = op.judge(judged), op.judge(plain)
        assert (one.keep.tolist(), list(one.reasons)) == (other.keep.tolist(), list(other.reasons))
        return
    unread = ["reward", "shaped_reward", "unscored_reason"]
    one, other = op.process_table(judged), op.process_table(plain)
    if name not in ("overlong_penalty_mapper", "length_shaping_mapper"):
        one, other = one.drop_columns(unread), other.drop_columns(["reward", "unscored_reason"])
        assert one.equals(other)
    else:
        assert one["shaped_reward"].equals(other["shaped_reward"])
