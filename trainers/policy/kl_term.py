"""The KL term of a stage: the divergence from the reference model, added to any policy loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import built_in
from trainers.models.options import section
from trainers.policy.kl import KL_ESTIMATORS, AdaptiveKl, bias_corrected


@dataclass(frozen=True, slots=True)
class KlTerm:
    """coef * mean over trained tokens of an estimate of KL(policy || reference), nats.

    Raises: RecipeError for values that make no sense.
    """

    coef: float
    estimator: str = "k3"
    target: float | None = None
    """Nats a token to which a controller steers the KL by changing `coef` (arXiv:1909.08593); None: `coef` is
    constant."""
    horizon: int = 10_000
    """Rows in which the controller moves `coef` by a fifth at most."""

    bias_correction: bool = False
    """Whether the estimate is multiplied by the ratio to the old policy, so that its gradient is right off
    policy (arXiv:2512.02556)."""

    def __post_init__(self) -> None:
        built_in(self.estimator, KL_ESTIMATORS, "KL estimator")
        if self.estimator == "k1" and not self.bias_correction:
            raise RecipeError(
                "kl.estimator is 'k1', whose gradient in a loss is zero on average: no pull to the "
                "reference. Take k2 or k3, or give it as a penalty in the reward (batch_ops: kl_penalty)."
            )
        if not (math.isfinite(self.coef) and self.coef > 0):
            raise RecipeError(
                f"kl.coef is {self.coef}, must be a finite number above 0; leave 'kl' out for none."
            )
        self.controller()

    def per_token(self, logprobs: torch.Tensor, old: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        """(B, C) estimates, with a gradient."""
        terms = KL_ESTIMATORS[self.estimator](logprobs, ref)
        return bias_corrected(terms, logprobs, old) if self.bias_correction else terms

    def controller(self) -> AdaptiveKl | None:
        """The controller that changes `coef` during training; None where `coef` is constant."""
        return None if self.target is None else AdaptiveKl(self.coef, self.target, self.horizon)


def kl_term(settings: Mapping[str, object]) -> KlTerm:
    """The term that a stage's `kl` describes.

    Raises: RecipeError for an unknown key or a bad value; UnknownComponentError for an unknown estimator.
    """
    return section(KlTerm, "kl", settings)
