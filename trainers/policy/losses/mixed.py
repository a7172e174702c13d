"""Policy losses on our own rows mixed with supervised ones on experts' rows: MIX and CHORD."""

from __future__ import annotations

import math
from typing import Literal

import torch

from rft_data.core.errors import TrainingError
from trainers.policy.losses.arguments import Positive, Share, Steps, UpToOne
from trainers.policy.losses.clipped import ppo_clip
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.supervised import weighted_nll


def mix(
    context: LossContext, mu: Share = 0.1, epsilon_low: UpToOne = 0.2, epsilon_high: Positive = 0.2
) -> torch.Tensor:
    """(1 - mu) L_RL + mu L_SFT: the clipped surrogate on our rows, -log pi on experts' rows.

    L_RL is the mean over the trained tokens of our rows in the whole optimizer step, L_SFT that over the
    experts' (rows instead of tokens under `row_mean` and `row_sum`): their weights are mu and 1 - mu
    whatever share of the batch the experts have, however rows are spread over micro-batches and ranks.
    A step without experts is (1 - mu) L_RL, one with nothing else is mu L_SFT. Needs `expert_share`.
    """
    return _mixture(context, mu, -context.logprobs, epsilon_low, epsilon_high)


def chord(
    context: LossContext,
    mu_peak: Share = 0.1,
    mu_valley: Share = 0.1,
    warmup_steps: Steps = 0,
    decay_steps: Steps = 0,
    weight: Literal["none", "phi"] = "phi",
    epsilon_low: UpToOne = 0.2,
    epsilon_high: Positive = 0.2,
) -> torch.Tensor:
    """(1 - mu(step)) L_RL + mu(step) L_SFT, as `mix`, with mu by `mu_at` (CHORD, arXiv:2508.11408).

    Args:
        weight: of an expert's token. phi: sg(pi (1 - pi)), CHORD-phi, for which the paper keeps mu at 0.1;
            none: 1, CHORD-mu, for which the paper lets mu fall from 0.9 to 0.05 over 200 steps.
    Needs `expert_share`; reads `step`.
    """
    mu = mu_at(context.step, mu_peak, mu_valley, warmup_steps, decay_steps)
    return _mixture(context, mu, weighted_nll(context.logprobs, weight), epsilon_low, epsilon_high)


def mu_at(step: int, peak: float, valley: float, warmup_steps: int, decay_steps: int) -> float:
    """Linear from 0 to `peak` in `warmup_steps`, half a cosine to `valley` in `decay_steps`, then flat."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    if step >= warmup_steps + decay_steps:
        return valley
    turn = math.pi * (step - warmup_steps) / decay_steps
    return valley + (peak - valley) * 0.5 * (1 + math.cos(turn))


def _mixture(
    context: LossContext, mu: float, expert_terms: torch.Tensor, epsilon_low: float, epsilon_high: float
) -> torch.Tensor:
    """Both kinds of terms, weighted so that the step's reduction gives each kind's own mean."""
    if context.expert_share is None:
        raise TrainingError(
            "losses 'mix' and 'chord' weigh experts by their share of the optimizer step, and the batch has "
            "no `expert_share`."
        )
    share = context.expert_share.to(context.logprobs.dtype).clamp(0.0, 1.0)
    # Where one kind is absent its weight multiplies nothing; the bound keeps it finite.
    experts, ours = mu / share.clamp(min=1e-12), (1 - mu) / (1 - share).clamp(min=1e-12)
    is_expert = context.is_expert.unsqueeze(1)
    our_terms = ppo_clip(context, epsilon_low, epsilon_high)
    return torch.where(is_expert, experts * expert_terms, ours * our_terms)
