"""Gradients of parameters outside the policy model, which TRL's loop does not handle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainers.policy.finite import require_finite
from trainers.ranks.sharding import whole


class OwnGradients(TrainerCallback):  # type: ignore[misc]
    """Averages over ranks, checks, clips and clears the gradients of a separate critic.

    TRL's loop clips and clears gradients of `model.parameters()` only, and wraps only the policy for several
    processes. The critic's norm is clipped by itself, to trl.max_grad_norm.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """`parameters`: those of the critic that the policy model does not have."""
        self._parameters = list(parameters)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Called by the training loop between clipping and the optimizer's step.

        Raises: TrainingError when the gradient is not finite.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if dist.is_initialized() and dist.get_world_size() > 1:
            for gradient in gradients:
                if not isinstance(gradient, DTensor):  # FSDP2 has averaged those
                    dist.all_reduce(gradient)
                    gradient /= dist.get_world_size()
        norm = torch.nn.utils.get_total_norm(gradients)
        require_finite("critic's gradient norm", whole(norm))
        if args.max_grad_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, args.max_grad_norm, norm)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Called right after the optimizer's step."""
        for p in self._parameters:
            p.grad = None
