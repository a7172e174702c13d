"""Decoupled PPO: the clip is centred on the policy at the start of the step, not on the one that sampled."""

from __future__ import annotations

import torch

from rft_data.core.errors import TrainingError
from trainers.policy.losses.arguments import Positive, UpToOne
from trainers.policy.losses.clipped import clipped_surrogate
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import exponentiate, log_ratio, own_mask


def decoupled_ppo(
    context: LossContext,
    cap: Positive = 2.0,
    epsilon_low: UpToOne = 0.2,
    epsilon_high: Positive = 0.2,
) -> torch.Tensor:
    """-min(prox / sampled, cap) min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), r = pi / prox.

    arXiv:2110.00641, as used for stale rollouts in arXiv:2505.24298 (AReaL), with the weight
    truncated at `cap`. prox is the policy at the start of the step, of which a forward pass is needed;
    sampled is as stored, whatever `old` is: leave `off_policy` at its defaults.
    """
    if context.prox is None:
        raise TrainingError(
            "loss 'decoupled_ppo' needs the start-of-step logprobs, and the batch has no `prox`."
        )
    return _decoupled(context, context.prox, cap, (epsilon_low, epsilon_high))


def loglinear_ppo(
    context: LossContext,
    cap: Positive = 2.0,
    epsilon_low: UpToOne = 0.2,
    epsilon_high: Positive = 0.2,
) -> torch.Tensor:
    """`decoupled_ppo` with prox interpolated instead of computed (A-3PO, arXiv:2512.06547).

    log prox = sg(log sampled / d + (1 - 1 / d) log pi), d = the row's `versions_behind`: prox is taken to
    lie one version before the current policy and d - 1 after the one that sampled, on a straight line. d = 0
    counts as 1: the policy that sampled is then itself the start of the step. No forward pass.
    """
    if context.versions_behind is None:
        raise TrainingError(
            "loss 'loglinear_ppo' needs the rows' age, and the batch has no `versions_behind`."
        )
    pull = 1 / context.versions_behind.to(context.logprobs.dtype).clamp(min=1).unsqueeze(1)
    prox = pull * context.sampled + (1 - pull) * context.logprobs.detach()
    return _decoupled(context, prox, cap, (epsilon_low, epsilon_high))


def _decoupled(
    context: LossContext, prox: torch.Tensor, cap: float, epsilon: tuple[float, float]
) -> torch.Tensor:
    weights = exponentiate((prox - context.sampled) * own_mask(context)).clamp(max=cap)
    return weights * clipped_surrogate(log_ratio(context, prox), context.advantages, *epsilon)
