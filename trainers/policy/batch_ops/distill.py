"""Batch operators for distillation, which read a teacher's log probability of each token.

The teacher is the stage's reference model. Nothing here runs a model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field

from trainers.models.nats import MAX_NATS
from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.state import BatchState
from trainers.policy.batch_ops.tokens import needed, sampled_rows

Coefficient = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


def distill(state: BatchState, coef: Coefficient = 1.0) -> BatchState:
    """A_t = coef * (log teacher_t - log sampling policy_t): on-policy distillation.

    The policy gradient of the reverse KL of each token, the tokens after it left out of account (discount
    0): arXiv:2306.13649, section 3, and https://thinkingmachines.ai/blog/on-policy-distillation. Rewards
    are not read: a row without one is trained on like any other, a group of one and equal rewards are
    nothing special. Rows of experts get 0.
    """
    advantages = coef * _teacher_minus_policy(state)
    return replace(state, advantages=advantages.to(state.token_rewards.dtype))


def jsd(state: BatchState, coef: Coefficient = 1.0, beta: Share = 0.5) -> BatchState:
    """A_t = coef * log(1 - beta + beta * P_t / Q_t) / beta, P the teacher, Q the policy that sampled.

    With M = beta P + (1 - beta) Q, the generalised Jensen-Shannon divergence of arXiv:2306.13649 (equation
    2) is D = beta KL(P|M) + (1 - beta) KL(Q|M); its gradient for one token is (1 - beta) E_Q[log(Q / M)
    grad log Q], since the terms through M cancel. Divided by beta (1 - beta), so that both ends are
    divergences too, the weight of grad log Q is the above: positive exactly where the teacher likes the
    token better. beta = 1 is the reverse KL (`distill`); beta = 0 the forward KL, P / Q - 1. Discount,
    missing rewards, groups and experts as for `distill`.
    """
    gap = _teacher_minus_policy(state)
    if beta == 0.0:
        weights = torch.expm1(gap)
    elif beta == 1.0:
        weights = gap
    else:
        weights = torch.log1p(beta * torch.expm1(gap)) / beta
    return replace(state, advantages=(coef * weights).to(state.token_rewards.dtype))


def _teacher_minus_policy(state: BatchState) -> torch.Tensor:
    """(R, C) float64 log ratio at the trained tokens of the policy's rows, 0 elsewhere."""
    teacher = needed(state.ref, "ref").double()
    learning = (state.mask > 0) & sampled_rows(state).unsqueeze(1)
    gap = (teacher - state.sampled.double()).clamp(-MAX_NATS, MAX_NATS)
    return torch.where(learning, gap, 0.0)


DISTILL = BatchOp(
    distill, "2306.13649", frozenset({"ref", "teacher"}), formula="A_t = c (log teacher_t - log μ_t)"
)
JSD = BatchOp(
    jsd, "2306.13649", frozenset({"ref", "teacher"}), formula="A_t = c log(1 - β + β teacher_t / μ_t) / β"
)
