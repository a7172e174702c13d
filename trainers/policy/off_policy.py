"""Corrections for rows that an older policy sampled: which settings make sense, and their weights.

mu is the policy that sampled (its logprobs are stored); prox is the policy at the start of the step. The
decoupled objective is that of arXiv:2505.24298 (AReaL). Nothing here runs a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from trl import GRPOConfig

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest
from rft_data.core.words import Importance, OldLogprobs
from trainers.models.nats import MAX_NATS
from trainers.models.options import section

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "old_logprobs": get_args(OldLogprobs),
    "importance": get_args(Importance),
}


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """The recipe's `off_policy`, checked.

    Raises: RecipeError for an unknown value, or values that contradict each other.
    """

    old_logprobs: OldLogprobs = "rollout"
    """The old policy of the ratio: `rollout` (mu, as stored) or `recompute` (prox)."""
    importance: Importance = "none"
    """Name of the function of prox / mu that multiplies the advantages, besides the ratio to prox."""
    cap: float = 2.0
    """Largest weight; for `masked` also 1 / the smallest."""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            given = getattr(self, name)
            if given not in allowed:
                raise RecipeError(
                    f"off_policy.{name} is '{given}', must be one of {', '.join(allowed)}."
                    f"{suggest(str(given), allowed)}"
                )
        if not (math.isfinite(self.cap) and self.cap > 1):
            raise RecipeError(
                f"off_policy.cap is {self.cap:g}, must be a finite number above 1: the weight of a row that "
                "the current policy would have sampled just as often."
            )
        if self.old_logprobs == "rollout" and self.importance != "none":
            raise RecipeError(
                f"off_policy.importance is '{self.importance}' with old_logprobs 'rollout': the weight is "
                "old / rollout policy, which is then always 1. Set old_logprobs to 'recompute', or "
                "importance to 'none'."
            )

    @property
    def weighted(self) -> bool:
        """Whether importance weights, and so a forward pass of prox, are needed."""
        return self.importance != "none"

    def weights(self, log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Importance weights of the tokens: w = prox / mu, truncated or masked; only where `weighted`.

        token_truncated: min(w_t, cap) (truncated importance sampling, as rho in arXiv:1802.01561).
        sequence_truncated: min(product of the sequence's w_t, cap) for each of its tokens.
        masked: w_t where 1 / cap <= w_t <= cap, else 0 (IcePop, arXiv:2510.18855).

        Args:
            log_ratio: (R, C) log prox - log mu, nats.
            mask: (R, C), 1 where the policy sampled the token; other tokens get weight 1 or their row's.
        Returns: (R, C), the dtype of `log_ratio`.
        """
        nats = (log_ratio * mask).double().clamp(-MAX_NATS, MAX_NATS)
        if self.importance == "sequence_truncated":
            nats = nats.sum(dim=1, keepdim=True).clamp(-MAX_NATS, MAX_NATS).expand_as(nats)
        weights = nats.exp()
        if self.importance == "masked":
            inside = (weights >= 1 / self.cap) & (weights <= self.cap)
            return (weights * inside).to(log_ratio.dtype)
        return weights.clamp(max=self.cap).to(log_ratio.dtype)


UNCORRECTED = OffPolicy()
"""No correction: the ratio is to the policy that sampled, and there are no weights."""


def off_policy_corrections(settings: Mapping[str, object], config: GRPOConfig) -> OffPolicy:
    """The recipe's `off_policy` section, checked together with the trainer's config.

    Raises: RecipeError naming every unknown key, a bad value, or a combination that makes no sense.
    """
    off_policy = section(OffPolicy, "off_policy", settings)
    if off_policy.old_logprobs == "recompute" and config.loss_type == "vespo":
        raise RecipeError(
            "off_policy.old_logprobs is 'recompute' with trl.loss_type 'vespo': vespo weighs each sequence "
            "by its ratio to the policy that sampled it, which 'recompute' replaces by 1. Set old_logprobs "
            "to 'rollout', or another loss_type."
        )
    return off_policy
