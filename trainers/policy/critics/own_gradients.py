"""The gradients that TRL's loop does not care for: of parameters outside the policy model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState

from trainers.policy.finite import require_finite


class OwnGradients(TrainerCallback):  # type: ignore[misc]
    """Averages, clips, checks and clears the gradients that TRL's loop does not: of a separate critic.

    The loop clips and clears those of `model.parameters()` only, and only the policy is wrapped for several
    processes. Its norm is clipped by itself, to trl.max_grad_norm.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """`parameters`: those that the policy model does not have."""
        self._parameters = list(parameters)

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the training loop between clipping and the optimizer's step.

        Raises: TrainingError when the gradient is not finite.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if dist.is_initialized() and dist.get_world_size() > 1:
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
        norm = torch.nn.utils.get_total_norm(gradients)
        require_finite("critic's gradient norm", norm)
        if args.max_grad_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, args.max_grad_norm, norm)

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called right after the optimizer's step."""
        for p in self._parameters:
            p.grad = None
