"""Functions that batch operators share: which rows are trained on, and sums over a row's trained tokens."""

from __future__ import annotations

import torch

from rft_data.core.errors import TrainingError
from trainers.policy.batch_ops.state import BatchState


def needed(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    """The tensor, where there is one.

    Raises: TrainingError when the batch lacks it.
    """
    if tensor is None:
        raise TrainingError(
            f"a batch operator reads '{name}', which this batch lacks; name it in the operator's needs "
            "(BatchOp.needs), and put the operator that sets it before this one."
        )
    return tensor


def sampled_rows(state: BatchState) -> torch.Tensor:
    """(R,) bool: rows that a policy of ours sampled, which an expert's row is not."""
    if state.is_expert is None:
        return torch.ones_like(state.rewards, dtype=torch.bool)
    return ~state.is_expert.bool()


def scored_rows(state: BatchState) -> torch.Tensor:
    """(R,) bool: rows that a policy of ours sampled and that have a reward."""
    return sampled_rows(state) & ~state.rewards.isnan()


def weights_in_rollouts(state: BatchState, counted: torch.Tensor) -> torch.Tensor:
    """(R,) float64: one over the counted rows of the row's rollout, 0 where a row is not counted.

    Args: counted: (R,) bool, false in padding.
    """
    weights = counted.double()
    if state.rollouts is None:
        return weights
    index = state.rollouts.clamp(min=0)
    rows = weights.new_zeros(int(index.max()) + 1).index_add_(0, index, weights)
    return weights / rows[index].clamp(min=1.0)


def discounted_sums(values: torch.Tensor, mask: torch.Tensor, factor: float) -> torch.Tensor:
    """S_t = x_t + factor * S_(next t), over the columns of each row where `mask` is set.

    Columns outside the mask are skipped, not discounted over, and get 0. log2(C) vector steps instead of
    C: S over the next 2n tokens is S over the next n plus factor^n times that of the n after them.

    Args:
        values: (R, C); mask: (R, C); factor: in [0, 1].
    Returns: (R, C) float64.
    """
    trained = mask > 0
    packed = (~trained).to(torch.int8).argsort(dim=1, stable=True)
    sums = torch.where(trained, values.double(), 0.0).gather(1, packed)
    span, weight = 1, factor
    while span < sums.shape[1] and weight > 0.0:
        sums = sums + weight * torch.nn.functional.pad(sums[:, span:], (0, span))
        span, weight = 2 * span, weight * weight
    return torch.where(trained, torch.empty_like(sums).scatter(1, packed, sums), 0.0)


def next_tokens(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(R, C) float64: at each column of the mask the value at the row's next one, 0 at its last.

    Outside the mask the result is 0.
    """
    trained = mask > 0
    packed = (~trained).to(torch.int8).argsort(dim=1, stable=True)
    ordered = torch.where(trained, values.double(), 0.0).gather(1, packed)
    following = torch.nn.functional.pad(ordered[:, 1:], (0, 1))
    return torch.where(trained, torch.empty_like(following).scatter(1, packed, following), 0.0)
