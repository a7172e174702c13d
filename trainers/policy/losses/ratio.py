"""Ratios of the current policy to an older one, shared by the losses.

`old` is the policy that the recipe's `off_policy.old_logprobs` chooses. An expert's rows have no older
policy: their log ratio is 0, and no mean here counts them.
"""

from __future__ import annotations

import torch

from trainers.models.nats import MAX_NATS
from trainers.policy.losses.context import LossContext


def own_mask(context: LossContext) -> torch.Tensor:
    """(B, C) float, 1 for the trained tokens that a policy of ours sampled."""
    return context.mask * (~context.is_expert).to(context.mask.dtype).unsqueeze(1)


def log_ratio(context: LossContext, old: torch.Tensor) -> torch.Tensor:
    """(B, C) log(current / old), nats; 0 for experts' rows and where the mask is 0."""
    return (context.logprobs - old) * own_mask(context)


def exponentiate(nats: torch.Tensor) -> torch.Tensor:
    """e^nats, finite: see MAX_NATS."""
    return nats.clamp(-MAX_NATS, MAX_NATS).exp()


def row_sum(nats: torch.Tensor) -> torch.Tensor:
    """(B, 1) the log ratio of the whole completion; 0 for a row of which nothing is trained on."""
    return nats.sum(dim=1, keepdim=True)
