"""remax_advantage_mapper: the greedy member's reward is the baseline, and its own rows train nothing."""

import pyarrow as pa
import pytest

from ops.runtime.pipeline import OperatorPipeline


def table_of(*rows):
    """(group, member, turn, reward)."""
    groups, members, turns, rewards = zip(*rows, strict=True)
    return pa.table(
        {
            "group_id": list(groups),
            "member": list(members),
            "turn": list(turns),
            "reward": pa.array(rewards, pa.float32()),
        }
    )


def test_advantage_is_the_reward_above_the_greedy_one(operator):
    table = table_of(
        ("h", 1, 0, 0.5), ("g", 0, 0, 0.25), ("g", 2, 0, 1.0), ("h", 0, 0, 1.0), ("g", 1, 0, None)
    )
    out = operator("remax_advantage_mapper").process_table(table)
    assert out["advantage"].to_pylist() == [[-0.5], [0.0], [0.75], [0.0], None]
    assert out["masked"].to_pylist() == [False, True, False, True, False]


def test_another_member_and_several_turns(operator):
    table = table_of(("g", 3, 1, 0.5), ("g", 3, 0, 9.0), ("g", 0, 0, 1.0), ("g", 0, 1, 0.0))
    out = operator("remax_advantage_mapper", baseline_member=3).process_table(
        table.append_column("masked", pa.array([None, None, True, None]))
    )
    assert out["advantage"].to_pylist() == [[0.0], [0.0], [-0.5], [-0.5]]
    assert out["masked"].to_pylist() == [True, True, True, False]


def test_shaped_reward_counts_where_it_is_set(operator):
    table = table_of(("g", 0, 0, 0.0), ("g", 1, 0, 1.0), ("g", 2, 0, 1.0))
    shaped = table.append_column("shaped_reward", pa.array([0.5, None, 0.25], pa.float32()))
    out = operator("remax_advantage_mapper").process_table(shaped)
    assert out["advantage"].to_pylist() == [[0.0], [0.5], [-0.25]]


@pytest.mark.parametrize("rewards", [[1.0, None], [1.0]])
def test_a_group_without_baseline_is_quarantined_alone(experiences, rewards):
    groups = ["g"] * len(rewards) + ["h", "h"]
    table = experiences(groups, [*rewards, 0.0, 1.0])
    members = pa.array([*[1, 0][: len(rewards)], 0, 1], pa.int64())
    table = table.set_column(table.column_names.index("member"), "member", members)
    out = OperatorPipeline([{"remax_advantage_mapper": {}}], name="experience_ops").run(table)
    assert out["verdict"].to_pylist() == ["quarantined"] * len(rewards) + ["kept"] * 2
    assert "wanted a member 0 with a reward" in out["reason"][0].as_py()


def test_negative_member_is_refused(operator):
    with pytest.raises(ValueError, match="baseline_member is -1"):
        operator("remax_advantage_mapper", baseline_member=-1)
