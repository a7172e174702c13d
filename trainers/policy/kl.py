"""Estimators of the KL divergence to a reference policy, and the controller of its coefficient.

KL(pi || ref) is estimated token by token from what pi sampled (John Schulman, "Approximating KL
divergence", 2020). Where the term goes (reward or loss) and how it is averaged is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from rft_data.core.errors import RecipeError, TrainingError
from trainers.models.nats import MAX_NATS

KlEstimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def k1(logprobs: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """log pi - log ref: unbiased, may be negative.

    On policy its gradient is the score function, whose mean is 0: noise, and no pull to `ref`. Use it in the
    reward; in a loss only with `bias_corrected`.
    """
    return logprobs - ref


def k2(logprobs: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """(log pi - log ref)^2 / 2: biased as a value; on policy its gradient is that of KL(pi || ref)."""
    return (logprobs - ref).square() / 2


def k3(logprobs: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """ref / pi - 1 - log(ref / pi): unbiased, never negative.

    On policy its gradient is that of KL(ref || pi), the other direction; where the two policies are close,
    both agree to second order. Multiplied by the ratio to the policy that sampled (`bias_corrected`), its
    gradient is that of KL(pi || ref). Above MAX_NATS the gradient is 0.
    """
    nats = (ref - logprobs).clamp(max=MAX_NATS)
    return nats.exp() - 1 - nats


def absolute(logprobs: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """|log pi - log ref|: no estimator of KL, but a bounded pull to `ref` (gradient ±1, 0 where equal)."""
    return (logprobs - ref).abs()


def low_var(logprobs: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """k3 of the log ratio clamped to ±20, at most 10, so no token dominates; beyond, the gradient is 0."""
    nats = (ref - logprobs).clamp(-20.0, 20.0)
    return (nats.exp() - 1 - nats).clamp(max=10.0)


KL_ESTIMATORS: dict[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute, "low_var": low_var}
"""(logprobs, ref) -> estimates of KL(pi || ref), nats, of one shape, by the name in `kl: {estimator}`."""


def bias_corrected(kl: torch.Tensor, logprobs: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Estimates for a loss on tokens that `old` sampled: `kl` times the differentiable ratio pi / old.

    DeepSeek-V3.2, arXiv:2512.02556 (TRL's use_bias_correction_kl). With k1 and k3 the gradient is then that
    of KL(pi || ref) in expectation over old's samples; k2's is right on policy without it.

    Args:
        kl: an estimator's values at `logprobs`; all three of one shape, finite.
    """
    return (logprobs - old).clamp(-MAX_NATS, MAX_NATS).exp() * kl


class AdaptiveKl:
    """A KL coefficient that steers the measured KL to a target (arXiv:1909.08593, section 2.2)."""

    def __init__(self, coef: float, target: float, horizon: float) -> None:
        """Start at `coef`.

        Args:
            coef: > 0; from 0 it could never move.
            target: the mean KL to steer to, in the unit that `update` is given, > 0.
            horizon: rows over which the coefficient moves by at most a fifth, > 0.
        Raises: RecipeError for a value that is not a finite number above 0.
        """
        for name, value in (("coef", coef), ("target", target), ("horizon", horizon)):
            if not 0 < value < math.inf:
                raise RecipeError(f"kl.{name} is {value}; adaptive KL wants a finite number above 0.")
        self.coef = coef
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, rows: int) -> None:
        """coef *= 1 + clip(kl / target - 1, ±0.2) rows / horizon, after a step of `rows` rows.

        More rows than the horizon count as the horizon; without rows nothing changes.
        Raises: TrainingError when `kl` is not finite.
        """
        if not math.isfinite(kl):
            raise TrainingError(f"the KL to the reference is {kl}; adaptive KL cannot follow it.")
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * min(rows / self.horizon, 1.0)

    def state_dict(self) -> dict[str, float]:
        """The coefficient, for a checkpoint; target and horizon come from the recipe."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from a checkpoint's coefficient."""
        self.coef = float(state["coef"])
