"""REINFORCE losses: the advantage times the log probability, with or without importance weights."""

from __future__ import annotations

import math
from typing import Literal

import torch

from trainers.policy.losses.arguments import Positive
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import exponentiate, log_ratio, row_sum

Level = Literal["token", "sequence"]


def policy_gradient(context: LossContext) -> torch.Tensor:
    """-A log pi (REINFORCE, doi:10.1007/BF00992696; with a critic's A that of A2C, arXiv:1602.01783).

    No ratio, no clip: right on policy only. Experts' rows have advantage 0 and add nothing.
    """
    return -context.advantages * context.logprobs


def importance_sampling(
    context: LossContext, cap: Positive | None = 2.0, level: Level = "token"
) -> torch.Tensor:
    """-sg(min(r, cap)) A log pi: truncated importance sampling (doi:10.1198/106186008X320456).

    Args:
        cap: largest weight; none: plain importance sampling, whose gradient is that of -r A.
        level: r = pi / old of the token, or of the whole sequence (the product, which is unbiased and of
            far larger variance).
    A weight at its cap keeps its gradient through log pi, unlike PPO's clip.
    """
    weight = _weight(context, level).clamp(max=math.inf if cap is None else cap)
    return -weight * context.advantages * context.logprobs


def topr(context: LossContext, level: Level = "sequence") -> torch.Tensor:
    """-sg(w) A log pi, w = 1 where A >= 0 and min(r, 1) where A < 0 (TOPR, arXiv:2503.14286).

    Good answers are learnt from at full weight however unlikely they have become, bad ones only while the
    policy may still give them. The paper's r is that of the trajectory, pi(y|x) / mu(y|x), the product over
    its tokens, and its A the reward or the reward less a baseline; that is level `sequence`. `token` takes
    each token's own ratio (Trinity-RFT's form), which tapers far less on long answers.
    """
    taper = _weight(context, level).clamp(max=1.0)
    weight = torch.where(context.advantages < 0, taper, torch.ones_like(taper))
    return -weight * context.advantages * context.logprobs


def _weight(context: LossContext, level: Level) -> torch.Tensor:
    """(B, C) r without a gradient; 1 for experts' rows."""
    nats = log_ratio(context, context.old).detach()
    if level == "sequence":
        nats = row_sum(nats).expand_as(nats)
    return exponentiate(nats)
