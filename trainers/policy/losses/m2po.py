"""M2PO: the tokens that drifted most are left out until the second moment of the log ratios is small."""

from __future__ import annotations

import torch

from trainers.policy.losses.arguments import Positive
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import exponentiate, log_ratio


def m2po(context: LossContext, threshold: Positive = 0.04) -> torch.Tensor:
    """-M r A, r = pi / old by token, M in {0, 1} by algorithm 1 of arXiv:2510.01161.

    Of the tokens on which PPO's clip could act (A > 0 and r > 1, or A < 0 and r < 1), those with the
    largest (log r)^2 get M = 0, as few as make the mean of (log r)^2 of the rest at most `threshold`
    (nats^2; the paper's 0.04). All other tokens have M = 1; left-out tokens count in the divisor.

    The mean is taken over the micro-batch, which is all a loss sees: every micro-batch, and so the step,
    keeps the bound, but a few more tokens may be left out than over the step at once. Of equal ones the
    later in the batch stay. Experts' tokens are not counted and add nothing.
    """
    nats = log_ratio(context, context.old)
    kept = _kept(nats.detach(), context.advantages, threshold)
    return -exponentiate(nats) * context.advantages * kept


def _kept(nats: torch.Tensor, advantages: torch.Tensor, threshold: float) -> torch.Tensor:
    """(B, C) bool M; no value leaves the device."""
    constrained = (nats * advantages > 0).flatten()
    squares = torch.where(constrained, nats.flatten().square(), torch.zeros(()).to(nats))
    ordered, order = squares.sort(descending=True, stable=True)
    remaining = constrained.sum() - torch.arange(len(ordered), device=nats.device)
    # Summed from the smallest: a large square must not swallow the small ones that stay.
    means = ordered.flip(0).cumsum(0).flip(0) / remaining.clamp(min=1)
    left_out = (means > threshold).sum()  # beyond the constrained ones only zeros are left
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=nats.device))
    return (ranks >= left_out).reshape(nats.shape)
