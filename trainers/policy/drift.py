"""How far the policy has moved from the ones that sampled a step's tokens.

It is given logprobs that the loss computes anyway, and only measures.
"""

from __future__ import annotations

import numpy as np
import torch

from rft_data.core.facts import ess_fraction
from rft_data.core.rows import StepReport
from trainers.models.nats import MAX_NATS
from trainers.policy.collate import NO_VERSION

_RATIO, _DIFFERENCE = "sampling/importance_sampling_ratio", "sampling/sampling_logp_difference"
"""TRL's names."""


class Drift:
    """Log ratios of one step's sampled tokens, current policy over the policy that sampled them."""

    def __init__(self) -> None:
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._importance: dict[str, float] = {}

    def weighted(self, weights: torch.Tensor, cap: float) -> None:
        """Add the importance weights (n,) with which the step's n sampled tokens are trained."""
        capped = (weights >= cap) | (weights == 0)
        self._importance = {
            "importance/mean": weights.mean().item(),
            "importance/capped": capped.float().mean().item(),
        }

    def add(self, log_ratio: torch.Tensor, mask: torch.Tensor, versions: torch.Tensor) -> None:
        """Add a micro-batch.

        Args:
            log_ratio: (B, C) nats.
            mask: (B, C), 1 where the policy sampled the token.
            versions: (B,) lowest policy version of each row's tokens, or NO_VERSION.
        """
        sampled = mask == 1
        per_token = versions.unsqueeze(1).expand_as(sampled)
        self._parts.append((log_ratio.detach()[sampled].float().cpu(), per_token[sampled].cpu()))

    def take(self) -> StepReport:
        """The numbers of the step; the next `add` begins another step.

        Metrics over tokens, with r = exp(log ratio): `sampling/importance_sampling_ratio/{min,mean,max,p99}`
        of r, `sampling/sampling_logp_difference/{mean,max}` of |log r|, and `kl_rollout`, the mean of
        r - 1 - log r, which estimates KL(sampling policy || current) without bias and is never negative.
        Where importance weights were used, also `importance/mean`, and `importance/capped`, the fraction of
        weights that the cap changed.

        `ess` by policy version: (sum r)^2 / (n sum r^2) over the n tokens of the version's rows. Tokens are
        used and not rows, because with products over long sequences one row gets all the weight.
        """
        if not self._parts:
            return StepReport({})
        nats = torch.cat([part for part, _ in self._parts]).double().numpy()
        versions = torch.cat([part for _, part in self._parts]).numpy()
        importance, self._parts, self._importance = self._importance, [], {}
        if not len(nats):  # every row was masked
            return StepReport({})
        nats = np.clip(nats, -MAX_NATS, MAX_NATS)
        ratio = np.exp(nats)
        metrics = {
            f"{_RATIO}/min": float(ratio.min()),
            f"{_RATIO}/mean": float(ratio.mean()),
            f"{_RATIO}/max": float(ratio.max()),
            f"{_RATIO}/p99": float(np.quantile(ratio, 0.99)),
            f"{_DIFFERENCE}/mean": float(np.abs(nats).mean()),
            f"{_DIFFERENCE}/max": float(np.abs(nats).max()),
            "kl_rollout": float((np.expm1(nats) - nats).mean()),
            **importance,
        }
        known = np.unique(versions[versions != NO_VERSION])
        found = {int(version): ess_fraction(nats[versions == version]) for version in known}
        return StepReport(metrics, {version: ess for version, ess in found.items() if ess is not None})
