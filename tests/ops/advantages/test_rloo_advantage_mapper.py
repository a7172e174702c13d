"""rloo_advantage_mapper against the leave-one-out mean, and TRL's RLOO expression."""

import pytest
import torch
from hypothesis import given

from tests.ops.advantages.advantage_reference import ROWS, check, table_of


def leave_one_out(reward, known):
    others = list(known)
    others.remove(reward)
    return reward - sum(others) / len(others) if others else 0.0


@pytest.mark.slow
@given(rows=ROWS)
def test_advantage_equals_leaving_one_out(operator, rows):
    check(operator("rloo_advantage_mapper"), rows, leave_one_out)


def test_advantage_equals_the_grouped_form_of_trl(operator):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand((16, 8), generator=generator)
    rows = [(g, value) for g, group in enumerate(rewards.tolist()) for value in group]
    out = operator("rloo_advantage_mapper").process_table(table_of(rows))["advantage"]
    baselines = (rewards.sum(1, keepdim=True) - rewards) / 7
    got = torch.tensor([value for [value] in out.to_pylist()])
    assert torch.allclose(got, (rewards - baselines).reshape(-1), atol=1e-6)


def test_group_of_one_and_equal_rewards_get_exactly_zero(operator):
    rows = [(0, 0.1), (0, 0.1), (0, 0.1), (1, 5.0)]
    out = operator("rloo_advantage_mapper").process_table(table_of(rows))
    assert out["advantage"].to_pylist() == [[0.0]] * 4
