"""The critic of PPO and A2C: its settings, its loss, its place in TRL's loop. What makes values is in `critics/`.

The trainer asks it for values of a batch, without a gradient at the start of a step (advantages) and with
one in the loss. It knows no advantage function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState

from rft_data.errors import RecipeError
from rft_data.lookup import suggest
from trainers.finite import require_finite

CRITIC_FOLDER = "critic"
"""In a checkpoint."""

_KINDS = ("shared", "separate")


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The stage's `critic: {...}`, checked.

    Raises: RecipeError for values that make no sense.
    """

    use: str = "shared"
    """`shared`: a head on the policy's own hidden states; `separate`: a second model."""
    learning_rate: float = 1e-5
    """Of the head (shared) or of the whole critic (separate); it follows the policy's schedule."""
    coef: float = 0.1
    """What the value loss is multiplied by; with `shared` it weighs what the backbone learns."""
    clip: float | None = 0.2
    """Furthest, in units of reward, that a step gains from moving a value; None: as far as it likes."""
    warmup_steps: int = 0
    """First optimizer steps of the run that train the critic alone."""

    def __post_init__(self) -> None:
        if self.use not in _KINDS:
            raise RecipeError(
                f"critic.use is '{self.use}', must be one of {', '.join(_KINDS)}."
                f"{suggest(str(self.use), _KINDS)}"
            )
        positive = {"learning_rate": self.learning_rate, "coef": self.coef, "clip": self.clip}
        for name, value in positive.items():
            if not (value is None and name == "clip") and not _is_positive(value):
                raise RecipeError(f"critic.{name} is {value!r}, must be a finite number above 0.")
        if (
            not isinstance(self.warmup_steps, int)
            or isinstance(self.warmup_steps, bool)
            or self.warmup_steps < 0
        ):
            raise RecipeError(f"critic.warmup_steps is {self.warmup_steps!r}, must be a whole number >= 0.")


def _is_positive(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def critic_settings_of(settings: Mapping[str, Any]) -> CriticSettings:
    """What a stage's `critic` says.

    Raises: RecipeError for unknown keys and bad values.
    """
    known = [field.name for field in dataclasses.fields(CriticSettings)]
    unknown = [f"'{name}';{suggest(str(name), known)}" for name in settings if name not in known]
    if unknown:
        raise RecipeError(f"critic has no {', '.join(unknown)} It has {', '.join(known)}.")
    return CriticSettings(**settings)


class Critic(Protocol):
    """What makes values."""

    reads_policy_pass: bool
    """Whether `values` takes them from the policy's own pass over the batch, which must have come before."""
    detached: bool
    """While set, the value loss changes no weight of the policy."""

    def values(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(R, C): [:, t] is the value before completion token t is sampled, in units of reward."""
        ...

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """What the critic's learning rate is for."""
        ...

    def beside_policy(self) -> Sequence[torch.nn.Parameter]:
        """Those of them that the policy model does not have."""
        ...

    def save(self, folder: Path) -> None:
        """Write the weights."""
        ...


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """(B, C): 0.5 * max((V - R)^2, (old + clamp(V - old, -clip, clip) - R)^2).

    The clipped value loss of PPO's implementation (arXiv:1707.06347; openai/baselines ppo2; TRL had the
    same): past `clip` from the value at the step's start, moving on towards the return gains nothing. The
    0.5 makes the gradient V - R. `clip` None: the squared error alone. All arguments are (B, C), in units
    of reward.
    """
    errors = (values - returns).square()
    if clip is not None:
        clipped = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (clipped - returns).square())
    return 0.5 * errors


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> float:
    """1 - Var(returns - values) / Var(returns) over the tokens of the mask; NaN where returns do not vary."""
    tokens = mask > 0
    targets = returns[tokens].double()
    if len(targets) < 2 or not targets.var() > 0:
        return math.nan
    return float(1 - (targets - values[tokens].double()).var() / targets.var())


def give_own_rate(optimizer: torch.optim.Optimizer, critic: Critic, learning_rate: float) -> None:
    """Move the critic's parameters into a parameter group of their own, last, without weight decay.

    The optimizer has taken no step yet.
    """
    own = list(critic.parameters())
    ids = {id(p) for p in own}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in ids]
    optimizer.add_param_group({"params": own, "lr": learning_rate, "weight_decay": 0.0})


class OwnGradients(TrainerCallback):  # type: ignore[misc]
    """Averages, clips, checks and clears the gradients that TRL's loop does not: of a separate critic.

    The loop clips and clears those of `model.parameters()` only, and only the policy is wrapped for several
    processes. Its norm is clipped by itself, to trl.max_grad_norm.
    """

    def __init__(self, critic: Critic) -> None:
        self._parameters = list(critic.beside_policy())

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
