"""The value loss, and how much of the returns the values explain."""

from __future__ import annotations

import math

import torch


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """(B, C): 0.5 * max((V - R)^2, (old + clamp(V - old, -clip, clip) - R)^2).

    The clipped value loss of PPO's implementation (arXiv:1707.06347; openai/baselines ppo2; TRL had the
    same): when V is more than `clip` from the value at the step's start, moving further towards the return
    gains nothing. The 0.5 makes the gradient V - R. `clip` None: the squared error alone. All arguments are
    (B, C), in units of reward.
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
