"""Batch operator: a KL penalty in the reward of each token."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import AfterValidator, Field

from rft_data.core.lookup import suggest
from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.state import BatchState
from trainers.policy.batch_ops.tokens import needed, sampled_rows
from trainers.policy.kl import KL_ESTIMATORS


def _known(estimator: str) -> str:
    """The name of a KL estimator, checked.

    Raises: ValueError, which becomes part of the message about the argument.
    """
    if estimator not in KL_ESTIMATORS:
        hint = suggest(estimator, KL_ESTIMATORS)
        raise ValueError(f"must be one of {', '.join(KL_ESTIMATORS)}" + (f";{hint}" if hint else ""))
    return estimator


Estimator = Annotated[str, AfterValidator(_known)]
Coefficient = Annotated[float, Field(ge=0)]


def kl_penalty(state: BatchState, coef: Coefficient = 0.001, estimator: Estimator = "k1") -> BatchState:
    """r_t = r_t - coef * KL_t at each trained token, KL_t estimated from sampling policy and reference.

    arXiv:2203.02155, equation 2 (estimator k1), token by token as in arXiv:1909.08593; estimators are those
    of `trainers.policy.kl`. Put it before the operator that reads token rewards (`gae`, `returns_to_go`).
    The policy is the one that sampled, of whose distribution the tokens are draws. Rows of experts, masked
    and padding rows keep theirs; a row without a reward is left out by the operators that follow. Groups are
    not read.
    """
    reference = needed(state.ref, "ref").double()
    learning = (state.mask > 0) & sampled_rows(state).unsqueeze(1)
    penalty = coef * KL_ESTIMATORS[estimator](state.sampled.double(), reference)
    rewards = state.token_rewards.double() - torch.where(learning, penalty, 0.0)
    return replace(state, token_rewards=rewards.to(state.token_rewards.dtype))


KL_PENALTY = BatchOp(
    kl_penalty,
    "2203.02155",
    frozenset({"ref", "token_rewards"}),
    frozenset({"token_rewards"}),
    formula="r_t - c KL_t(μ, ref)",
)
