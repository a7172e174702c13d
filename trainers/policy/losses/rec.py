"""The REC family: REINFORCE with group-relative advantages, a range of ratios, a weight and a regulariser."""

from __future__ import annotations

from typing import Literal

import torch

from trainers.policy.losses.arguments import NonNegative, Positive, UpToOne
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import exponentiate, log_ratio

ClipMode = Literal["none", "one_side", "two_side", "ring"]
Weight = Literal["none", "importance", "advantage"]
Ring = tuple[UpToOne, Positive]


def rec(
    context: LossContext,
    clip_mode: ClipMode = "one_side",
    weight: Weight = "none",
    epsilon_low: UpToOne = 0.2,
    epsilon_high: Positive = 0.2,
    ring: Ring = (0.6, 2.0),
    temperature: Positive = 1.0,
    k2: NonNegative = 0.0,
) -> torch.Tensor:
    """-sg(w 1[in range]) A log pi + k2 d^2, d = log(pi / old), r = e^d by token (arXiv:2509.24203).

    Args:
        clip_mode: which tokens count. none: all; one_side: r <= 1 + epsilon_high where A >= 0 and
            r >= 1 - epsilon_low where A <= 0 (PPO's own region); two_side: 1 - epsilon_low <= r <=
            1 + epsilon_high; ring: two_side, and r <= 1 - ring[0] where A >= 0, and r >= 1 + ring[1] where
            A <= 0 (far tokens whose gradient leads back).
        weight: w. none: 1; importance: r (with one_side the gradient is PPO's); advantage:
            e^(A / temperature) (RED-Weight), the exponent held within ±60.
        k2: coefficient of the regulariser, which is Kimi's without its half, on every token sampled.
    A is r minus the group's mean in the paper. An expert's rows add nothing.
    """
    nats = log_ratio(context, context.old)
    ratio, advantages = exponentiate(nats.detach()), context.advantages
    inside = _inside(clip_mode, ratio, advantages, (epsilon_low, epsilon_high), ring)
    weights = inside.to(ratio.dtype)
    if weight == "importance":
        weights = weights * ratio
    elif weight == "advantage":
        weights = weights * exponentiate(advantages / temperature)
    return -weights * advantages * context.logprobs + k2 * nats.square()


def _inside(
    clip_mode: ClipMode,
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    epsilon: tuple[float, float],
    ring: tuple[float, float],
) -> torch.Tensor:
    """(B, C) bool: the tokens whose ratio counts."""
    above, below = ratio >= 1 - epsilon[0], ratio <= 1 + epsilon[1]
    gains, losses = advantages >= 0, advantages <= 0
    if clip_mode == "one_side":
        return (gains & below) | (losses & above)
    if clip_mode == "two_side":
        return above & below
    if clip_mode == "ring":
        far = (gains & (ratio <= 1 - ring[0])) | (losses & (ratio >= 1 + ring[1]))
        return (above & below) | far
    return torch.ones_like(above)
