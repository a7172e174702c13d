"""What the tests of the losses share: ragged batches, and a comparison with a plain Python reference.

A reference is `(batch, row, logprobs, **args) -> terms`: the terms of one row's tokens in float64 lists,
no torch. `logprobs` are that row's, which the gradient is taken by; `batch.logprobs` are the same numbers
and stay fixed, so a reference stops a gradient by reading them from there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st

from trainers.policy.losses.context import LossContext

Matrix = list[list[float]]
Reference = Callable[..., Sequence[float]]
STEP = 1e-6
SOME = settings(max_examples=50)
"""Enough batches: each has up to 24 tokens."""


@dataclass
class Batch:
    """A LossContext in lists of B rows of C values."""

    logprobs: Matrix
    old: Matrix
    sampled: Matrix
    advantages: Matrix
    mask: Matrix
    entropies: Matrix
    is_expert: list[bool]
    ref: Matrix
    prox: Matrix
    rewards: list[float]
    versions_behind: list[int]
    step: int

    def own(self, row: int) -> list[int]:
        """Columns of the row's trained tokens; none for an expert's row."""
        return [] if self.is_expert[row] else self.trained(row)

    def trained(self, row: int) -> list[int]:
        """Columns of the row's trained tokens."""
        return [t for t, kept in enumerate(self.mask[row]) if kept]

    def share(self) -> float:
        """The experts' share of the trained tokens."""
        experts = sum(len(self.trained(b)) for b in range(len(self.mask)) if self.is_expert[b])
        return experts / max(sum(len(self.trained(b)) for b in range(len(self.mask))), 1)

    def context(self, dtype: torch.dtype = torch.float64) -> LossContext:
        """The same numbers as tensors; `logprobs` takes a gradient."""

        def tensor(values: object) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype)

        return LossContext(
            logprobs=tensor(self.logprobs).requires_grad_(),
            old=tensor(self.old),
            sampled=tensor(self.sampled),
            advantages=tensor(self.advantages),
            mask=tensor(self.mask),
            entropies=tensor(self.entropies).requires_grad_(),
            is_expert=torch.tensor(self.is_expert),
            ref=tensor(self.ref),
            prox=tensor(self.prox),
            rewards=tensor(self.rewards),
            versions_behind=torch.tensor(self.versions_behind),
            expert_share=tensor(self.share()),
            step=self.step,
        )


def _drift(rng: random.Random) -> float:
    """A log ratio: none, small, large, or extreme."""
    kind = rng.random()
    if kind < 0.15:
        return 0.0
    if kind < 0.25:
        return rng.choice([-30.0, 30.0]) + rng.random()
    return rng.gauss(0, 0.15 if kind < 0.7 else 1.0)


@st.composite
def batches(draw: st.DrawFn, experts: bool = True) -> Batch:
    """1 to 4 rows of 1 to 6 columns: holes in the masks, empty rows, experts, advantages of all signs.

    Rewards are often exactly 0, 1/2 or 1, as thresholds are.
    """
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rng = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311
    density = [rng.choice([0.0, 0.6, 0.9, 1.0, 1.0]) for _ in range(rows)]
    mask = [[float(rng.random() < kept) for _ in range(columns)] for kept in density]
    is_expert = [experts and rng.random() < 0.3 for _ in range(rows)]

    def matrix(cell: Callable[[int, int], float]) -> Matrix:
        return [[cell(b, t) if mask[b][t] else 0.0 for t in range(columns)] for b in range(rows)]

    logprobs = matrix(lambda b, t: -rng.expovariate(0.7))
    signs = [rng.choice([-1, 0, 1]) for _ in range(rows)]
    return Batch(
        logprobs=logprobs,
        old=matrix(lambda b, t: 0.0 if is_expert[b] else logprobs[b][t] - _drift(rng)),
        sampled=matrix(lambda b, t: 0.0 if is_expert[b] else logprobs[b][t] - _drift(rng)),
        advantages=matrix(
            lambda b, t: 0.0 if is_expert[b] else (signs[b] or rng.choice([-1, 0, 1])) * rng.expovariate(1)
        ),
        mask=mask,
        entropies=matrix(lambda b, t: rng.expovariate(1)),
        is_expert=is_expert,
        ref=matrix(lambda b, t: logprobs[b][t] - _drift(rng)),
        prox=matrix(lambda b, t: logprobs[b][t] - _drift(rng)),
        rewards=[
            math.nan if e else rng.choice([0.0, 1.0, 0.5, math.nan, rng.gauss(0, 1)]) for e in is_expert
        ],
        versions_behind=[rng.choice([0, 0, 1, 2, 7]) for _ in range(rows)],
        step=rng.randrange(20),
    )


def check(function: Callable[..., torch.Tensor], reference: Reference, batch: Batch, **args: object) -> None:
    """Value and gradient of a loss equal the reference's, and float32 stays finite.

    The gradient is that of a sum with unequal weights, so that a term put at the wrong token shows.
    Value within 1e-6, gradient within 1e-5 relative, plus what a float64 difference can resolve.
    """
    context = batch.context()
    terms = function(context, **args)
    assert terms.shape == context.mask.shape
    weights = torch.linspace(0.5, 1.5, terms.numel(), dtype=torch.float64).reshape(terms.shape)
    (gradient,) = torch.autograd.grad((terms * context.mask * weights).sum(), context.logprobs)
    for row in range(len(batch.mask)):
        columns = batch.trained(row)
        wanted = reference(batch, row, batch.logprobs[row], **args)
        for t in columns:
            assert math.isclose(terms[row, t].item(), wanted[t], rel_tol=1e-6, abs_tol=1e-12), (row, t)
        scale = max((abs(wanted[t]) for t in columns), default=0.0)
        for t in range(len(batch.mask[row])):
            slope = _slope(reference, batch, row, t, weights[row].tolist(), args) if t in columns else 0.0
            if slope is not None:
                near = 1e-5 * abs(slope) + 1e-8 * scale
                assert abs(gradient[row, t].item() - slope) <= near, (row, t, gradient[row, t].item(), slope)
    _check_finite(function, batch, **args)


def _slope(
    reference: Reference,
    batch: Batch,
    row: int,
    column: int,
    weights: Sequence[float],
    args: dict[str, object],
) -> float | None:
    """The derivative of the row's weighted terms by one log probability; None at a kink."""

    def terms_at(step: float) -> Sequence[float]:
        logprobs = list(batch.logprobs[row])
        logprobs[column] += step
        return reference(batch, row, logprobs, **args)

    columns = batch.trained(row)
    above, here, below = terms_at(STEP), terms_at(0.0), terms_at(-STEP)
    # Term by term: a term that does not move cancels exactly, however large it is.
    right = sum(weights[t] * (above[t] - here[t]) for t in columns) / STEP
    left = sum(weights[t] * (here[t] - below[t]) for t in columns) / STEP
    scale = max(abs(here[t]) for t in columns)
    if abs(right - left) > 1e-3 * max(abs(right), abs(left)) + 1e-6 * scale:
        return None
    return (right + left) / 2


def _check_finite(function: Callable[..., torch.Tensor], batch: Batch, **args: object) -> None:
    context = batch.context(torch.float32)
    terms = function(context, **args)
    (gradient,) = torch.autograd.grad((terms * context.mask).sum(), context.logprobs)
    assert torch.isfinite(terms).all()
    assert torch.isfinite(gradient).all()
