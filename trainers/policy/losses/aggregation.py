"""Reduces the tokens' terms to the scalar that is differentiated.

A micro-batch gives its part of the whole optimizer step. The parts of all micro-batches, averaged over the
ranks as DDP averages gradients, add up to the value for all rows of the step at once.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from trainers.policy.losses.loss import Aggregation

Count: TypeAlias = torch.Tensor | float


def aggregate(
    per_token: torch.Tensor,
    mask: torch.Tensor,
    kind: Aggregation,
    *,
    tokens: Count,
    rollouts: Count,
    share: Count = 1.0,
    world: int = 1,
) -> torch.Tensor:
    """The micro-batch's part of the step's loss.

    Args:
        per_token: (B, C), finite.
        mask: (B, C), 1 where a token is trained on. A row without one, padding or not, adds 0.
        tokens: trained tokens of the whole optimizer step, all micro-batches and ranks.
        rollouts: rollouts of the step's lease, all ranks; masked ones count, padding does not.
        share: (B,) the share of its rollout that a row is, 1 where a rollout has one row.
        world: ranks over which gradients are averaged.
    Returns: scalar; 0 for a step without a trained token.
    """
    terms = per_token * mask
    if kind == "token_mean":
        return terms.sum() * world / _at_least_one(tokens)
    sums = terms.sum(dim=1)
    if kind == "row_mean":
        sums = sums / mask.sum(dim=1).clamp(min=1) * share
    return sums.sum() * world / _at_least_one(rollouts)


def expert_share(
    mask: torch.Tensor, is_expert: torch.Tensor, kind: Aggregation, *, rollouts: Count, share: Count = 1.0
) -> torch.Tensor:
    """The share of experts in what `aggregate` averages over in one optimizer step, a scalar in [0, 1].

    Args:
        mask: (R, C) of all rows of the step, of all ranks.
        is_expert: (R,) bool, false for padding.
        rollouts: rollouts of the step's lease.
        share: (R,) the share of its rollout that a row is.
    Returns: 0 for a step without experts, or without trained tokens.
    """
    if kind == "token_mean":
        return mask[is_expert].sum() / mask.sum().clamp(min=1)
    return (is_expert.to(mask.dtype) * share).sum() / _at_least_one(rollouts)


def _at_least_one(count: Count) -> Count:
    return count.clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)
