"""A whole lease as batch operators read it, before it is split into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BatchState:
    """R rows (padding included) and C completion columns; nothing carries a gradient."""

    rewards: torch.Tensor
    """(R,) shaped reward, else reward, of the row's rollout; NaN where it has none (experts, padding)."""
    groups: torch.Tensor
    """(R,) int64: rows with equal numbers are of one group; -1 for padding."""
    mask: torch.Tensor
    """(R, C) float, 1 where a token is trained on; 0 in padding and masked rows."""
    sampled: torch.Tensor
    """(R, C) log probabilities of the policy that sampled, nats."""
    token_rewards: torch.Tensor
    """(R, C): at first each row's reward at its last trained token, 0 elsewhere."""
    advantages: torch.Tensor | None = None
    """(R, C), 0 where the mask is 0; None until an operator has set them."""
    returns: torch.Tensor | None = None
    """(R, C) the critic's targets, where an operator sets them."""
    prox: torch.Tensor | None = None
    """(R, C) log probabilities of the policy at the start of the step, where needed."""
    ref: torch.Tensor | None = None
    """(R, C) log probabilities of the reference (or teacher) model, where needed."""
    values: torch.Tensor | None = None
    """(R, C) the critic's values before each token, where needed."""
    rollouts: torch.Tensor | None = None
    """(R,) int64: rows with equal numbers are of one rollout; -1 for padding. None: each row is a rollout."""
    is_expert: torch.Tensor | None = None
    """(R,) bool; experts' advantages stay 0."""
