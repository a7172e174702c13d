"""What a policy loss sees of one micro-batch. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LossContext:
    """One micro-batch of B rows and C completion columns; only `logprobs` and `entropies` carry a gradient.

    Log probabilities are natural, of the tempered distribution, finite, and 0 where `mask` is 0.
    """

    logprobs: torch.Tensor
    """(B, C) of the current policy."""
    old: torch.Tensor
    """(B, C) of the ratio's old policy: as stored, or the policy at the start of the step."""
    sampled: torch.Tensor
    """(B, C) of the policy that sampled, as stored; 0 for rows of an expert."""
    advantages: torch.Tensor
    """(B, C); 0 for rows of an expert."""
    mask: torch.Tensor
    """(B, C) float, 1 where a token is trained on."""
    entropies: torch.Tensor
    """(B, C) of the current policy, nats."""
    is_expert: torch.Tensor
    """(B,) bool: somebody else's answer, of which no policy's logprobs are stored."""
    ref: torch.Tensor | None = None
    """(B, C) of the reference model, where the loss needs it."""
    prox: torch.Tensor | None = None
    """(B, C) of the policy at the start of the step, where the loss needs it."""
    rewards: torch.Tensor | None = None
    """(B,) rewards, NaN where a row has none."""
    versions_behind: torch.Tensor | None = None
    """(B,) optimizer steps between the row's lowest policy version and the trainer's."""
    expert_share: torch.Tensor | None = None
    """() the experts' share, in [0, 1], of what the reduction averages over in this optimizer step (trained
    tokens for `token_mean`, else rows), over all micro-batches and ranks; where the loss needs it."""
    step: int = 0
    """Optimizer steps done."""
