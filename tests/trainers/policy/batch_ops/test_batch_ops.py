"""What batch operators promise at the edges: ranks, groups of one, equal and missing rewards, directions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rft_data.core.errors import TrainingError
from trainers.policy.batch_ops import BATCH_OPS, BatchState


def state_of(rewards: list[float], groups: list[int], columns: int = 3, **fields: Any) -> BatchState:
    """One row for each reward, every token of it trained unless `mask` is given."""
    given = torch.tensor(rewards, dtype=torch.float64)
    mask = fields.pop("mask", torch.ones(len(rewards), columns, dtype=torch.float64))
    at_end = torch.zeros_like(mask)
    at_end[:, -1] = given.nan_to_num()
    return BatchState(
        rewards=given,
        groups=torch.tensor(groups),
        mask=mask,
        sampled=fields.pop("sampled", torch.zeros_like(mask)),
        token_rewards=fields.pop("token_rewards", at_end),
        **fields,
    )


def run(name: str, state: BatchState, **args: Any) -> torch.Tensor:
    out = BATCH_OPS[name].function(state, **args).advantages
    assert out is not None
    return out


def test_gae_skips_the_environments_tokens_without_discounting_them() -> None:
    values = torch.tensor([[0.5, 9.0, 9.0, 0.25]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    got = BATCH_OPS["gae"].function(state_of([1.0], [0], mask=mask, values=values), gamma=0.5, lam=0.5)
    last = 1.0 - 0.25
    first = 0.0 + 0.5 * 0.25 - 0.5 + 0.25 * last
    assert got.advantages.tolist() == [[first, 0.0, 0.0, last]]
    assert got.returns.tolist() == [[first + 0.5, 0.0, 0.0, last + 0.25]]


def test_gae_with_lambda_one_is_the_return_less_the_value() -> None:
    values = torch.tensor([[0.5, 0.125, -1.0]], dtype=torch.float64)
    assert run("gae", state_of([2.0], [0], values=values)).tolist() == [[1.5, 1.875, 3.0]]


@pytest.mark.parametrize(
    ("name", "fields"), [("gae", {"values": torch.ones(3, 3)}), ("returns_to_go", {}), ("batch_std", {})]
)
def test_rows_without_a_reward_padding_and_experts_get_nothing(name: str, fields: dict[str, Any]) -> None:
    mask = torch.ones(3, 3, dtype=torch.float64)
    mask[2] = 0.0
    state = state_of([1.0, math.nan, math.nan], [0, 0, -1], mask=mask, **fields)
    assert run(name, state)[1:].abs().max() == 0.0
    expert = replace(state, rewards=torch.ones(3).double(), is_expert=torch.tensor([False, True, False]))
    assert run(name, expert)[1:].abs().max() == 0.0


def test_batch_std_gives_exactly_zero_to_a_group_of_one_and_to_equal_rewards() -> None:
    got = run("batch_std", state_of([0.1, 0.1, 0.1, 0.7, 1.0, 0.0], [0, 0, 0, 1, 2, 2]), eps=0.0)
    assert got[:4].abs().max() == 0.0
    assert got[4, 0] == -got[5, 0] > 0.0
    assert run("batch_std", state_of([0.3, 0.3], [0, 0]), eps=0.0).abs().max() == 0.0


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.0, 0.25, 1.0])), min_size=2, max_size=6))
def test_batch_std_counts_a_rollout_of_several_rows_once(rollouts: list[tuple[int, float]]) -> None:
    members = [member for member, (rows, _) in enumerate(rollouts) for _ in range(rows)]
    groups = [member % 2 for member in range(len(rollouts))]
    whole = run("batch_std", state_of([reward for _, reward in rollouts], groups))
    rows = state_of([rollouts[member][1] for member in members], [groups[member] for member in members])
    split = run("batch_std", replace(rows, rollouts=torch.tensor(members)))
    torch.testing.assert_close(split, whole[members], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "fields"), [("gae", {"values": torch.zeros(2, 3)}), ("returns_to_go", {})])
def test_each_row_of_a_fork_is_owed_its_rollouts_reward(name: str, fields: dict[str, Any]) -> None:
    assert run(name, state_of([1.0, 1.0], [0, 0], rollouts=torch.tensor([0, 0]), **fields)).eq(1.0).all()


def test_whiten_has_mean_zero_and_variance_one_and_leaves_unscored_rows_at_zero() -> None:
    given = torch.tensor([[1.0, 2.0], [4.0, 0.5], [0.0, 0.0]], dtype=torch.float64)
    got = run("whiten", state_of([1.0, 0.0, math.nan], [0, 0, 1], columns=2, advantages=given))
    assert got[2].tolist() == [0.0, 0.0]
    assert got[:2].mean() == pytest.approx(0.0, abs=1e-12)
    assert got[:2].var() == pytest.approx(1.0, rel=1e-7)
    same = torch.full((2, 2), 0.3, dtype=torch.float64)
    state = state_of([1.0, 1.0], [0, 1], columns=2, advantages=same)
    assert run("whiten", state).abs().max() < 1e-9
    one = state_of([1.0], [0], columns=1, advantages=torch.ones(1, 1, dtype=torch.float64))
    assert run("whiten", one).item() == 0.0
    assert run("whiten", one, shift_mean=False).item() == 1.0


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_jsd_weights_are_the_divergences_gradient(beta: float) -> None:
    """Over a whole vocabulary: -E_Q[A grad log Q] against autograd of the divergence itself."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    p, q = teacher.exp(), policy.exp()
    mixture = (beta * p + (1 - beta) * q).log()
    if beta == 0.0:
        divergence = (p * (teacher - policy)).sum()
    elif beta == 1.0:
        divergence = (q * (policy - teacher)).sum()
    else:
        divergence = beta * (p * (teacher - mixture)).sum() + (1 - beta) * (q * (policy - mixture)).sum()
        divergence = divergence / (beta * (1 - beta))
    (want,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    state = state_of([math.nan] * 7, [0] * 7, columns=1, sampled=policy.detach().unsqueeze(1))
    weights = run("jsd", replace(state, ref=teacher.unsqueeze(1)), beta=beta).squeeze(1)
    (got,) = torch.autograd.grad(-(q.detach() * weights * policy).sum(), logits)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    assert torch.equal(weights > 0, teacher > policy.detach())


def test_distillation_survives_tokens_that_one_model_rules_out() -> None:
    sampled = torch.tensor([[-1.0, -2000.0, -1.0]])
    state = replace(state_of([math.nan], [0], sampled=sampled), ref=torch.tensor([[-3000.0, -1.0, -1.0]]))
    for beta in (0.0, 0.5, 1.0):
        assert run("jsd", state, beta=beta).isfinite().all()
    assert run("distill", state).tolist() == [[-60.0, 60.0, 0.0]]


def test_advantages_keep_the_batchs_dtype() -> None:
    single = torch.zeros(1, 3)
    state = state_of([1.0], [0], mask=single + 1, token_rewards=single, advantages=single + 1, values=single)
    for name, op in BATCH_OPS.items():
        after = op.function(replace(state, ref=single))
        assert {after.advantages.dtype, after.token_rewards.dtype} == {torch.float32}, name


def test_batch_operator_without_what_it_needs_says_so() -> None:
    with pytest.raises(TrainingError, match="reads 'values', which this batch lacks"):
        run("gae", state_of([1.0], [0]))
