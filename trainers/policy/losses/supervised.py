"""Supervised losses: the negative log probability, of every row or of accepted ones."""

from __future__ import annotations

import math
from typing import Literal

import torch

from rft_data.core.errors import TrainingError
from trainers.policy.losses.arguments import Finite, Positive, UpToOne
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import exponentiate, log_ratio

TokenWeight = Literal["none", "probability", "phi"]


def weighted_nll(logprobs: torch.Tensor, weight: TokenWeight, cutoff: float = 1.0) -> torch.Tensor:
    """-sg(w) min(log p, log cutoff), of any shape.

    w is 1 (none), p (probability: DFT, arXiv:2508.05629) or p (1 - p) (phi: CHORD, arXiv:2508.11408).
    Tokens of p above `cutoff` have no gradient.
    """
    probability = logprobs.detach().exp()
    nll = -logprobs.clamp(max=math.log(cutoff)) if cutoff < 1 else -logprobs
    if weight == "probability":
        return probability * nll
    if weight == "phi":
        return probability * (1 - probability) * nll
    return nll


def sft(context: LossContext, weight: TokenWeight = "none", cutoff: UpToOne = 1.0) -> torch.Tensor:
    """-sg(w) log pi on every trained token, an expert's or not; advantages are not read.

    Args:
        weight: none (w = 1), probability (w = pi: dynamic fine-tuning, arXiv:2508.05629; Trinity-RFT's
            sft_is) or phi (w = pi (1 - pi), arXiv:2508.11408; Trinity-RFT's sft_phi).
        cutoff: tokens the policy already gives more than this probability have no gradient; 1: none.
    """
    return weighted_nll(context.logprobs, weight, cutoff)


def raft(
    context: LossContext,
    select: Literal["reward", "advantage"] = "reward",
    threshold: Finite = 0.0,
    weight: Literal["none", "importance"] = "none",
    cap: Positive = 2.0,
) -> torch.Tensor:
    """-sg(w) log pi on what was accepted: rejection sampling with SFT (RAFT, arXiv:2304.06767).

    Args:
        select: what must be above `threshold`: the row's reward, or the token's advantage. An expert's rows
            are always accepted; a row of ours without a reward never is.
        weight: w. none: 1; importance: min(pi / old, cap) by token, for answers that an older policy gave;
            an expert's tokens keep 1.
    What is rejected adds nothing but counts in the divisor, so the step grows with the acceptance rate, as
    the policy gradient of a 0/1 reward does. To divide by accepted tokens only, drop the rows before the
    lease (`reward_range_filter`).
    """
    experts = context.is_expert.unsqueeze(1)
    if select == "reward":
        accepted = _rewards(context).unsqueeze(1) > threshold
    else:
        accepted = context.advantages > threshold
    weights = (accepted | experts).to(context.logprobs.dtype)
    if weight == "importance":
        weights = weights * exponentiate(log_ratio(context, context.old).detach()).clamp(max=cap)
    return -weights * context.logprobs


def _rewards(context: LossContext) -> torch.Tensor:
    if context.rewards is None:
        raise TrainingError("loss 'raft' selects by reward, and the batch has no `rewards`.")
    return context.rewards
