"""Generalised advantage estimation, and the plain discounted return, over a row's trained tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field

from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.state import BatchState
from trainers.policy.batch_ops.tokens import discounted_sums, needed, next_tokens, scored_rows

Discount = Annotated[float, Field(ge=0, le=1)]


def gae(state: BatchState, gamma: Discount = 1.0, lam: Discount = 1.0) -> BatchState:
    """A_t = d_t + gamma * lam * A_(t+1), d_t = r_t + gamma * V_(t+1) - V_t; returns_t = A_t + V_t.

    arXiv:1506.02438, equation 16. t counts a row's trained tokens only: an environment's tokens lie between
    two of them without a step of their own, and neither their values nor rewards on them are read. The
    value after the last trained token is 0, of a truncated answer too. Rows are independent of each other, so
    a group of one and equal rewards are nothing special. Each row of a rollout that forked ends with the
    rollout's reward: with gamma = lam = 1 its tokens are owed what they would be in one row, and with less
    the discount counts from the row's own end. A row without a reward, or of an expert, gets advantages and
    returns of 0; the critic's loss leaves it out.
    """
    values = needed(state.values, "values").double()
    trained = state.mask * scored_rows(state).unsqueeze(1)
    errors = state.token_rewards.double() + gamma * next_tokens(values, trained) - values
    advantages = discounted_sums(errors, trained, gamma * lam)
    returns = torch.where(trained > 0, advantages + values, 0.0)
    kind = state.token_rewards.dtype
    return replace(state, advantages=advantages.to(kind), returns=returns.to(kind))


def returns_to_go(state: BatchState, gamma: Discount = 1.0) -> BatchState:
    """A_t = r_t + gamma * A_(t+1) over a row's trained tokens.

    REINFORCE without a baseline (Williams 1992); with `kl_penalty` before and `whiten` after it, REINFORCE++
    (arXiv:2501.03262). t counts as for `gae`, and the rows of a rollout that forked get its reward as there.
    A group of one and equal rewards are nothing special; a row without a reward, or of an expert, gets 0.
    """
    trained = state.mask * scored_rows(state).unsqueeze(1)
    sums = discounted_sums(state.token_rewards, trained, gamma)
    return replace(state, advantages=sums.to(state.token_rewards.dtype))


GAE = BatchOp(
    gae,
    "1506.02438",
    frozenset({"values", "token_rewards"}),
    frozenset({"advantages", "returns"}),
    formula="A_t = Σ_k (gamma λ)^k δ_(t+k), δ_t = r_t + gamma V_(t+1) - V_t",
)
RETURNS_TO_GO = BatchOp(
    returns_to_go, "2501.03262", frozenset({"token_rewards"}), formula="A_t = Σ_k gamma^k r_(t+k)"
)
