"""The tensors of one micro-batch that a policy loss reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainers.policy.collate import trained


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
    """(B,) bool: an expert's answer, for which no policy's logprobs are stored."""
    ref: torch.Tensor | None = None
    """(B, C) of the reference model, where the loss needs it."""
    prox: torch.Tensor | None = None
    """(B, C) of the policy at the start of the step, where the loss needs it."""
    rewards: torch.Tensor | None = None
    """(B,) rewards, NaN where a row has none."""
    versions_behind: torch.Tensor | None = None
    """(B,) optimizer steps between the row's lowest policy version and the trainer's."""
    expert_share: torch.Tensor | None = None
    """() the share of experts, in [0, 1], in what the reduction averages over in this optimizer step (trained
    tokens for `token_mean`, else rows), over all micro-batches and ranks; where the loss needs it."""
    step: int = 0
    """Optimizer steps done."""


def loss_context(
    inputs: dict[str, torch.Tensor], logprobs: torch.Tensor, entropies: torch.Tensor, step: int
) -> LossContext:
    """The context of one micro-batch.

    Args:
        inputs: a micro-batch of `full_batch`, as TRL's loss reads it.
        logprobs, entropies: (B, C) of the current policy, with a gradient.
        step: optimizer steps done.
    """
    mask = trained(inputs).to(logprobs.dtype)
    advantages = inputs["advantages"]
    advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
    prox = logprobs.detach() * mask
    return LossContext(
        logprobs=logprobs * mask,
        old=inputs.get("old_per_token_logps", prox) * mask,
        sampled=inputs["sampling_per_token_logps"] * mask,
        advantages=advantages * mask,
        mask=mask,
        entropies=entropies,
        is_expert=inputs["is_expert"],
        ref=inputs["ref_per_token_logps"] * mask if "ref_per_token_logps" in inputs else None,
        prox=prox,
        rewards=inputs["rewards"],
        versions_behind=inputs["versions_behind"],
        expert_share=inputs.get("expert_share"),
        step=step,
    )
