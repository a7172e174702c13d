"""A policy loss as recipes name it: its function, its reduction, its source, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trainers.policy.losses.context import LossContext

Aggregation = Literal["token_mean", "row_mean", "row_sum"]
Metrics: TypeAlias = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that a recipe can name.

    `function(context, **args)` returns (B, C): each token's term, to be minimised. It is multiplied by the
    mask and reduced over the optimizer step as `aggregation` says. It may also return a pair: the terms, and
    metrics by name, each (B, C), which are logged as their means over the trained tokens of the step.
    """

    function: Callable[..., torch.Tensor | tuple[torch.Tensor, Metrics]]
    paper: str = ""
    """arXiv id, or another source."""
    aggregation: Aggregation = "token_mean"
    """token_mean: over all trained tokens of the step; row_mean: the mean over rows of each row's token
    mean; row_sum: the mean over rows of each row's token sum. Rows: those of the lease, never padding;
    several rows of one rollout count as one."""
    needs: frozenset[str] = frozenset()
    """Inputs that it reads of `ref`, `prox`, `rewards`, `versions_behind` and `expert_share`; and `experts`,
    where it trains on rows of experts. A loss without `experts` refuses such rows."""
    weighs: bool = False
    """Whether importance weights on the advantages (`off_policy.importance`) are refused: the loss has
    weights of its own, or reads no advantages."""
    of_sampler: bool = False
    """Whether its ratio must be to the policy that sampled; to that at the step's start it is always 1."""
    formula: str = ""
    """A token's term in the symbols of docs/algorithms.md."""

    def __call__(self, context: LossContext) -> torch.Tensor:
        """The tokens' terms (B, C), with the arguments that `make_loss` bound."""
        return self.with_metrics(context)[0]

    def with_metrics(self, context: LossContext) -> tuple[torch.Tensor, Metrics]:
        """The tokens' terms, and what the loss measures of each token; both (B, C)."""
        found = self.function(context)
        return found if isinstance(found, tuple) else (found, {})
