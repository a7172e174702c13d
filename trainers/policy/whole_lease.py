"""Runs a stage's batch operators on the tensors of a whole lease."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.batch_ops.state import BatchState
from trainers.policy.collate import trained


def run_batch_ops(
    batch: dict[str, torch.Tensor],
    batch_ops: Sequence[BatchOp],
    prox: torch.Tensor | None = None,
    values: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Run the operators, one after the other.

    Args:
        batch: the result of `full_batch`, with `ref_per_token_logps` where there is a reference.
        prox: (R, C) log probabilities of the policy at the start of the step, nats.
        values: (R, C) of the critic.
    Returns: `advantages` (R, C) and, where an operator sets them, `returns` (R, C); empty without operators.
    """
    if not batch_ops:
        return {}
    state = _batch_state(batch, prox, values)
    for op in batch_ops:
        state = op.function(state)
    made = {"advantages": state.advantages, "returns": state.returns}
    return {name: tensor.float() for name, tensor in made.items() if tensor is not None}


def _batch_state(
    batch: dict[str, torch.Tensor], prox: torch.Tensor | None, values: torch.Tensor | None
) -> BatchState:
    mask = trained(batch).float()
    given = batch["advantages"]
    if given.dim() == 1:
        advantages = given.unsqueeze(1) * mask
        token_rewards = advantages * _last(mask)
        rewards = given.clone()
    else:
        advantages = token_rewards = given * mask
        rewards = advantages.sum(dim=1)
    absent = batch["is_expert"] | (batch["groups"] < 0)
    return BatchState(
        rewards=rewards.masked_fill(absent, torch.nan),
        groups=batch["groups"],
        mask=mask,
        sampled=batch["sampling_per_token_logps"] * mask,
        token_rewards=token_rewards,
        advantages=advantages,
        prox=None if prox is None else prox * mask,
        ref=batch["ref_per_token_logps"] * mask if "ref_per_token_logps" in batch else None,
        values=None if values is None else values * mask,
        rollouts=batch["rollouts"],
        is_expert=batch["is_expert"],
    )


def _last(mask: torch.Tensor) -> torch.Tensor:
    """(R, C), 1 at each row's last trained token."""
    after = mask.flip(1).cumsum(1).flip(1)
    return (after == 1).to(mask.dtype) * mask
