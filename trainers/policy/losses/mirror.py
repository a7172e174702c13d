"""Mirror-descent losses: opmd and sppo. Both stay near `old` through the log ratio itself."""

from __future__ import annotations

import math
from typing import Literal

import torch

from trainers.policy.losses.arguments import Positive
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.ratio import log_ratio, row_sum


def opmd(
    context: LossContext, tau: Positive = 1.0, form: Literal["simple", "kimi"] = "simple"
) -> torch.Tensor:
    """Online policy mirror descent with temperature tau (the strength of the pull to `old`).

    simple: -A log pi / (1 + tau) (arXiv:2505.17826, appendix A: the pull is to the current policy, so that
        only the step shrinks; valid off policy as long as A is centred in its group).
    kimi: a row's loss is -sum_t A log pi + tau / 2 (sum_t d)^2, d = log(pi / old), whose gradient is that
        of the squared regression of Kimi k1.5 (arXiv:2501.12599, section 2.3.2) divided by 2 tau. Token t's
        term is -A log pi + tau / 2 d_t sum_s d_s: the sum over the row is the formula, the split between
        its tokens has no meaning of its own.
    A should be r minus its group's mean or log-partition (`opmd_advantage_mapper`). Experts' rows add
    nothing.
    """
    terms = -context.advantages * context.logprobs
    if form == "simple":
        return terms / (1 + tau)
    nats = log_ratio(context, context.old)
    return terms + tau / 2 * nats * row_sum(nats)


def sppo(context: LossContext, epsilon: Positive = 0.3) -> torch.Tensor:
    """-A log clip(r, 1 / (1 + epsilon), 1 + epsilon), r = pi / old (softmax PPO, arXiv:2108.05828).

    What Trinity-RFT calls sppo. Outside the range the gradient is 0 on both sides, for either sign of A: a
    token that has moved the wrong way is not pulled back. Self-play preference optimization
    (arXiv:2405.00675), also called SPPO, is TRL's DPO loss_type `sppo_hard`.
    """
    edge = math.log1p(epsilon)
    return -context.advantages * log_ratio(context, context.old).clamp(-edge, edge)
