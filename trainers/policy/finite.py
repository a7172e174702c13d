"""Refuses losses and gradients that are NaN or infinite, before they change a weight."""

from __future__ import annotations

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rft_data.core.errors import TrainingError
from trainers.ranks.sharding import whole


def require_finite(what: str, value: torch.Tensor) -> None:
    """Check the 0-dim `value`.

    Raises: TrainingError when it is NaN or infinite.
    """
    if not torch.isfinite(value):
        raise TrainingError(
            f"the {what} is {value.item()}, so no weight was changed; look at the batch's advantages and "
            "logprobs, or lower trl.learning_rate"
        )


class FiniteGradients(TrainerCallback):
    """Ends training with a TrainingError before an optimizer step whose gradient norm is not finite."""

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: torch.nn.Module,
        **kwargs: object,
    ) -> None:
        """Called by the training loop between clipping and the optimizer's step."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        require_finite("gradient norm", whole(torch.nn.utils.get_total_norm(gradients)))
