"""The clipped surrogate of PPO, with two further bounds: dual clip, and masking of drifted sequences."""

from __future__ import annotations

import torch

from trainers.policy.losses.arguments import AboveOne, NonNegative, Positive, UpToOne
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import exponentiate, log_ratio, own_mask


def clipped_surrogate(
    nats: torch.Tensor, advantages: torch.Tensor, epsilon_low: float, epsilon_high: float
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) with r = e^nats, of any one shape."""
    ratio = exponentiate(nats)
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def ppo_clip(context: LossContext, epsilon_low: UpToOne = 0.2, epsilon_high: Positive = 0.2) -> torch.Tensor:
    """-min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), r = pi / old by token (arXiv:1707.06347).

    With `token_mean` this is TRL's loss_type `dapo`. A token of advantage 0, a masked one, and an expert's
    add nothing.
    """
    nats = log_ratio(context, context.old)
    return clipped_surrogate(nats, context.advantages, epsilon_low, epsilon_high)


def dual_clip(
    context: LossContext,
    epsilon_low: UpToOne = 0.2,
    epsilon_high: Positive = 0.2,
    max_ratio: AboveOne = 3.0,
) -> torch.Tensor:
    """The clipped surrogate, at most -max_ratio A where A < 0 (arXiv:1912.09729).

    Without it a token that the current policy favours far more than the old one did, and that has a
    negative advantage, has no bound on its loss. `max_ratio` is the paper's c; above 1 + epsilon_high the
    result equals TRL's `delta`.
    """
    terms = ppo_clip(context, epsilon_low, epsilon_high)
    bounded = torch.minimum(terms, -max_ratio * context.advantages)
    return torch.where(context.advantages < 0, bounded, terms)


def sequence_masking(
    context: LossContext,
    threshold: NonNegative = 0.1,
    epsilon_low: UpToOne = 0.2,
    epsilon_high: Positive = 0.2,
) -> torch.Tensor:
    """The clipped surrogate without the tokens of negative advantage in sequences that have drifted.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv:2512.02556): a token with A < 0 is dropped when its
    sequence's mean over trained tokens of log(sampled) - log(pi), nats, is above `threshold`. The policy
    that sampled is compared, whatever `old` is. Dropped tokens still count in the reduction's divisor.
    """
    terms = ppo_clip(context, epsilon_low, epsilon_high)
    return terms * ~_drifted(context, threshold)


def _drifted(context: LossContext, threshold: float) -> torch.Tensor:
    """(B, C) bool: tokens of negative advantage in rows whose mean drift is above the threshold."""
    tokens = own_mask(context).sum(dim=1, keepdim=True).clamp(min=1)
    drift = -log_ratio(context, context.sampled).detach().sum(dim=1, keepdim=True) / tokens
    return (context.advantages < 0) & (drift > threshold)
