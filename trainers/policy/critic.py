"""The critic of PPO and A2C as the trainer holds it: settings, loss, optimizer group, files.

The trainer asks it for values of a batch, without a gradient at the start of a step (advantages are made of
them) and with one in the loss. How values are made is in `critics/`; advantages are `batch_ops`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rft_data.core.errors import RecipeError
from trainers.policy.batch_ops import BatchOp
from trainers.policy.critics.loss import explained_variance, value_loss
from trainers.policy.critics.own_gradients import OwnGradients
from trainers.policy.critics.separate import SeparateCritic
from trainers.policy.critics.settings import CriticSettings, checked_critic_settings
from trainers.policy.critics.shared import SharedCritic

CRITIC_FOLDER = "critic"
"""In a checkpoint."""

Batch = dict[str, torch.Tensor]


class ValueModel(Protocol):
    """What makes values."""

    reads_policy_pass: bool
    """Whether `values` takes them from the policy's own pass over the batch, which must have come before."""
    detached: bool
    """While set, the value loss changes no weight of the policy."""

    def values(self, batch: Batch) -> torch.Tensor:
        """(B, C): [:, t] is the value before completion token t is sampled, in units of reward."""
        ...

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """What the critic's learning rate is for."""
        ...

    def beside_policy(self) -> Sequence[torch.nn.Parameter]:
        """Those of them that the policy model does not have."""
        ...

    def save(self, folder: Path, *, write: bool) -> None:
        """Write the weights; every rank calls it, one of them with `write`."""
        ...


class Critic:
    """A value model in training."""

    def __init__(self, settings: CriticSettings, model: ValueModel) -> None:
        """`model`: in place, on the trainer's device."""
        self.settings = settings
        self.model = model
        self.callbacks = [OwnGradients(beside)] if (beside := list(model.beside_policy())) else []
        """What the trainer's loop must call."""

    def start_step(self, step: int) -> None:
        """Say how many optimizer steps are done; in warm-up the value loss spares the policy."""
        self.model.detached = self.in_warmup(step)

    def in_warmup(self, step: int) -> bool:
        """Whether, after so many optimizer steps, the critic still trains alone."""
        return step < self.settings.warmup_steps

    def loss(self, inputs: Batch) -> torch.Tensor:
        """(B, C) terms of the value loss of a micro-batch, times `coef`.

        `inputs` has the step's `values` and `returns` (B, C).
        """
        values = self.model.values(inputs)
        terms = value_loss(values, inputs["values"], inputs["returns"], self.settings.clip)
        return self.settings.coef * terms

    def metrics(self, batch: Batch, mask: torch.Tensor) -> dict[str, float]:
        """Of the values at a step's start, over the tokens of the mask (R, C); NaN where there are none."""
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
    """All that is needed to make a critic, once the trainer has its policy."""

    settings: CriticSettings
    model_path: Path
    """The policy's folder before training."""
    resume_from: Path | None = None
    """The checkpoint to take the critic's weights from."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`model_init_kwargs` of the policy."""

    def build(self, model: Any, args: Any, device: torch.device) -> Critic:
        """The critic of `model`, as TRL's trainer has patched it; `args` are the trainer's.

        Raises: ResumeError when the checkpoint has no such critic; RecipeError for a separate critic where
            the policy is spread over ranks.
        """
        if self.settings.use == "separate" and (args.deepspeed or args.fsdp):
            raise RecipeError(
                "critic.use is 'separate' with trl.deepspeed or trl.fsdp: they shard and save the policy's "
                "parameters only, and a second model would be left out. Set critic.use to 'shared'."
            )
        folder = None if self.resume_from is None else self.resume_from / CRITIC_FOLDER
        if self.settings.use == "shared":
            return Critic(self.settings, SharedCritic(model, folder))
        separate = SeparateCritic(self.model_path, folder, self.options)
        separate.place(device, gradient_checkpointing=args.gradient_checkpointing)
        return Critic(self.settings, separate)


def critic_plan(
    settings: Mapping[str, Any] | None,
    batch_ops: Sequence[BatchOp],
    model_path: Path,
    resume_from: Path | None,
    options: Mapping[str, Any],
) -> CriticPlan | None:
    """The critic that a stage's `critic: {...}` asks for; None where it has none.

    Args: options: the recipe's `trl: {...}`; the others as of CriticPlan.
    Raises: RecipeError for bad settings, and for batch operators that lack a critic, or a critic that lacks
        them.
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
    return CriticPlan(checked, model_path, resume_from, options.get("model_init_kwargs") or {})
