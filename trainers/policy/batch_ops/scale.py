"""Batch operators that centre or scale: over all tokens (whiten), or groups against the batch (batch_std)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field

from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.state import BatchState
from trainers.policy.batch_ops.tokens import needed, sampled_rows, scored_rows, weights_in_rollouts

_WHITEN_EPS = 1e-8
"""Added to the variance; that of TRL's and OpenRLHF's PPO."""

_ROUNDING = 1e-12
"""Relative difference below which two rewards are equal; float32 ones differ by 6e-8 at least."""

Eps = Annotated[float, Field(ge=0)]


def whiten(state: BatchState, shift_mean: bool = True) -> BatchState:
    """A_t = (A_t - m) / sqrt(v + 1e-8); with shift_mean=False m is added again.

    m and v (unbiased) are over the trained tokens of all rows, as in PPO's implementations
    and REINFORCE++ (arXiv:2501.03262, equation 9). Rows of experts, and rows that have neither a reward
    nor an advantage other than 0, are left out and keep 0. Fewer than two tokens: v counts as 0. Equal
    advantages become 0. A group of one is nothing special.
    """
    given = needed(state.advantages, "advantages").double()
    part = sampled_rows(state) & (scored_rows(state) | (given != 0).any(dim=1))
    weight = (state.mask > 0).double() * part.unsqueeze(1)
    count = weight.sum()
    mean = (given * weight).sum() / count.clamp(min=1.0)
    centred = (given - mean) * weight
    # A second pass: the difference of two large sums would lose a small variance.
    variance = centred.square().sum() / (count - 1.0).clamp(min=1.0)
    scaled = centred * torch.rsqrt(variance + _WHITEN_EPS)
    out = scaled if shift_mean else scaled + mean * weight
    return replace(state, advantages=out.to(state.token_rewards.dtype))


def batch_std(state: BatchState, eps: Eps = 1e-4) -> BatchState:
    """A = (r - mean of the group) / (std of all rewards + eps), the same for each trained token of a row.

    std has ddof=1 (Lite PPO, arXiv:2508.08221): for the lease what `grpo_advantage_mapper` with
    scale="batch" does for a batch of the pipeline. A rollout counts once in mean and std, however many rows
    it has. A group of one, and one of equal rewards, gets 0; a row without a reward, or of an expert, is
    left out and gets 0.
    """
    scored = scored_rows(state) & (state.groups >= 0)
    rewards = torch.where(scored, state.rewards, 0.0).double()
    weights = weights_in_rollouts(state, scored)
    index = state.groups.clamp(min=0)
    sums = torch.zeros(2, int(index.max()) + 1, dtype=torch.float64, device=rewards.device)
    sums[0].index_add_(0, index, rewards * weights)
    sums[1].index_add_(0, index, weights)
    means = (sums[0] / sums[1].clamp(min=1.0))[index]
    # The mean of equal rewards is off by rounding, which must not become an advantage.
    differs = scored & ((rewards - means).abs() > _ROUNDING * means.abs())
    std = _std(rewards, weights)
    per_row = torch.where(differs, (rewards - means) / (std + eps), 0.0)
    advantages = torch.where(state.mask > 0, per_row.unsqueeze(1), 0.0)
    return replace(state, advantages=advantages.to(state.token_rewards.dtype))


def _std(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """0-dim standard deviation (ddof=1) of weighted rewards; 0 for a weight of fewer than two."""
    count = weights.sum()
    mean = (rewards * weights).sum() / count.clamp(min=1.0)
    squares = ((rewards - mean).square() * weights).sum()
    return (squares / (count - 1.0).clamp(min=1.0)).sqrt()


WHITEN = BatchOp(
    whiten, "2501.03262", frozenset({"advantages"}), formula="(A_t - mean A) / sqrt(var A + 1e-8)"
)
BATCH_STD = BatchOp(
    batch_std, "2508.08221", frozenset({"rewards"}), formula="(r - mean_group r) / (std_batch r + ε)"
)
