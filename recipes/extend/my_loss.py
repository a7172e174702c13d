"""A loss: the ratio to the policy that sampled goes through a smooth gate instead of a clip."""

from __future__ import annotations

import torch

from trainers.policy.losses import Loss, LossContext


def gated(context: LossContext, width: float = 0.2) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """-width * tanh((ratio - 1) / width) * advantage for each token, and a metric; both (rows, tokens).

    The metric `outside` is logged as `loss/outside`: the share of trained tokens whose ratio left 1 ± width.
    """
    moved = (context.logprobs - context.old).exp() - 1.0
    outside = (moved.detach().abs() > width).float()
    return -width * torch.tanh(moved / width) * context.advantages, {"outside": outside}


# token_mean: over all trained tokens of the step; row_mean: over its sequences, each by its own mean;
# row_sum: over its sequences, each by its sum.
GATED = Loss(gated, aggregation="row_mean")
