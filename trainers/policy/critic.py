"""The critic of PPO and A2C: its settings, loss, optimizer group and files.

The trainer asks it for the values of a batch twice: at the start of a step without a gradient, for the
advantages (`batch_ops`), and with one in the loss. The two kinds of critic are in `critics/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel
from trl import GRPOConfig

from rft_data.core.errors import RecipeError
from trainers.models.options import loading_options
from trainers.policy.batch_ops import BatchOp
from trainers.policy.critics.loss import explained_variance, value_loss
from trainers.policy.critics.own_gradients import OwnGradients
from trainers.policy.critics.separate import SeparateCritic
from trainers.policy.critics.settings import CriticSettings, checked_critic_settings
from trainers.policy.critics.shared import SharedCritic

CRITIC_FOLDER = "critic"
"""Folder of the critic inside a checkpoint."""

Batch = dict[str, torch.Tensor]


class ValueModel(Protocol):
    """Computes the values: `SharedCritic` or `SeparateCritic`."""

    reads_policy_pass: bool
    """Whether `values` uses the policy's own forward pass over the batch, which must be made before it."""
    detached: bool
    """While true, the value loss changes no weight of the policy."""

    def values(self, batch: Batch) -> torch.Tensor:
        """(B, C): [:, t] is the value before completion token t is sampled, in units of reward."""
        ...

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """The parameters that train with the critic's learning rate."""
        ...

    def beside_policy(self) -> Sequence[torch.nn.Module]:
        """Models with parameters that the policy model does not have."""
        ...

    def save(self, folder: Path, *, write: bool) -> None:
        """Write the weights. Every rank calls it, one of them with `write`."""
        ...


class Critic:
    """A value model in training, with its settings."""

    def __init__(self, settings: CriticSettings, model: ValueModel) -> None:
        """`model`: on the trainer's device already."""
        self.settings = settings
        self.model = model
        beside = [parameter for one in model.beside_policy() for parameter in one.parameters()]
        self.callbacks = [OwnGradients(beside)] if beside else []
        """Callbacks that the trainer's loop must have."""

    def start_step(self, step: int) -> None:
        """Begin the step after `step` done ones; during warm-up the value loss does not change the policy."""
        self.model.detached = self.in_warmup(step)

    def in_warmup(self, step: int) -> bool:
        """Whether, after `step` optimizer steps, the critic still trains alone."""
        return step < self.settings.warmup_steps

    def loss(self, inputs: Batch) -> torch.Tensor:
        """(B, C) terms of the value loss of a micro-batch, multiplied by `coef`.

        `inputs` has the step's `values` and `returns` (B, C).
        """
        values = self.model.values(inputs)
        terms = value_loss(values, inputs["values"], inputs["returns"], self.settings.clip)
        return self.settings.coef * terms

    def metrics(self, batch: Batch, mask: torch.Tensor) -> dict[str, float]:
        """How good the values at a step's start are, over the tokens of the mask (R, C), or NaN."""
        values, returns = batch["values"], batch["returns"]
        return {
            "critic/value": float(values[mask > 0].mean()),
            "critic/return": float(returns[mask > 0].mean()),
            "critic/explained_variance": explained_variance(values, returns, mask),
        }

    def give_own_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the critic's parameters into a parameter group of their own, last, without weight decay.

        The optimizer has taken no step yet.
        """
        own = list(self.model.parameters())
        ids = {id(p) for p in own}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in ids]
        optimizer.add_param_group({"params": own, "lr": self.settings.learning_rate, "weight_decay": 0.0})

    def save(self, checkpoint: Path, *, write: bool) -> None:
        """Write its weights into a checkpoint's folder; the optimizer's state is the trainer's to save.

        Every rank calls it, one of them with `write`.
        """
        self.model.save(checkpoint / CRITIC_FOLDER, write=write)


@dataclass(frozen=True, slots=True)
class CriticPlan:
    """The plan of a critic, which is made once the trainer has its policy."""

    settings: CriticSettings
    model_path: Path
    """The policy's folder before training."""
    resume_from: Path | None = None
    """The checkpoint with the critic's weights; None at the start of a run."""
    options: Mapping[str, object] = field(default_factory=dict)
    """`model_init_kwargs` of the policy."""

    def build(
        self, model: PreTrainedModel, args: GRPOConfig, device: torch.device, *, split: bool = False
    ) -> Critic:
        """The critic of `model`, which TRL's trainer has patched already; `args` are the trainer's.

        Args: split: a separate critic is split over the ranks; a shared one is split with the policy.
        Raises: ResumeError when the checkpoint has no such critic; RecipeError for a separate critic where
            accelerate spreads the policy over ranks.
        """
        if self.settings.use == "separate" and (args.deepspeed or args.fsdp):
            raise RecipeError(
                "critic.use is 'separate' with trl.deepspeed or trl.fsdp: they shard and save the policy's "
                "parameters only, not those of a second model. Set critic.use to 'shared', or split with "
                "placement.trainer.shard."
            )
        folder = None if self.resume_from is None else self.resume_from / CRITIC_FOLDER
        if self.settings.use == "shared":
            return Critic(self.settings, SharedCritic(model, folder))
        separate = SeparateCritic(self.model_path, folder, self.options)
        separate.place(device, gradient_checkpointing=args.gradient_checkpointing)
        if split:
            separate.split(device)
        return Critic(self.settings, separate)


def critic_plan(
    settings: Mapping[str, object] | None,
    batch_ops: Sequence[BatchOp],
    model_path: Path,
    resume_from: Path | None,
    options: Mapping[str, object],
) -> CriticPlan | None:
    """The critic that a stage's `critic: {...}` asks for; None where it has none.

    Args: options: the recipe's `trl: {...}`; the others are described at CriticPlan.
    Raises: RecipeError for bad settings, for batch operators that need a critic which is not there, and for a
        critic without batch operators that use it.
    """
    reads = any("values" in op.needs for op in batch_ops)
    if settings is None:
        if reads:
            raise RecipeError(
                "the stage's batch_ops read a critic's values (gae does), and it has no critic; add "
                "'critic: {}', or make advantages without one (returns_to_go)."
            )
        return None
    checked = checked_critic_settings(settings)
    if not reads or not any("returns" in op.sets for op in batch_ops):
        raise RecipeError(
            "the stage has a critic, and no operator in its batch_ops gives it returns to learn; add 'gae' "
            "to batch_ops, or remove 'critic'."
        )
    return CriticPlan(checked, model_path, resume_from, loading_options(options))
