"""mix and chord against their formulas in plain Python, and the objective over a split step."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rft_data.core.errors import TrainingError
from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from tests.trainers.policy.losses.test_clipped import ppo_clip_reference
from tests.trainers.policy.losses.test_supervised import sft_reference
from trainers.policy.losses import LOSSES
from trainers.policy.losses.aggregation import aggregate, expert_share
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.mixed import chord, mix, mu_at


def mix_reference(
    batch: Batch, b: int, logprobs: list[float], mu: float = 0.1, weight: str = "none", **epsilon: float
) -> list[float]:
    if batch.is_expert[b]:
        share = max(batch.share(), 1e-12)
        return [mu / share * x for x in sft_reference(batch, b, logprobs, weight)]
    share = max(1 - batch.share(), 1e-12)
    return [(1 - mu) / share * x for x in ppo_clip_reference(batch, b, logprobs, **epsilon)]


def chord_reference(
    batch: Batch,
    b: int,
    logprobs: list[float],
    mu_peak: float = 0.1,
    mu_valley: float = 0.1,
    warmup_steps: int = 0,
    decay_steps: int = 0,
    weight: str = "phi",
    **epsilon: float,
) -> list[float]:
    if batch.step < warmup_steps:
        mu = batch.step / warmup_steps * mu_peak
    elif batch.step < warmup_steps + decay_steps:
        done = (batch.step - warmup_steps) / decay_steps
        mu = mu_valley + (mu_peak - mu_valley) * (1 + math.cos(math.pi * done)) / 2
    else:
        mu = mu_valley
    return mix_reference(batch, b, logprobs, mu, weight, **epsilon)


REFERENCES = {"mix": mix_reference, "chord": chord_reference}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mix", {}),
        ("mix", {"mu": 0.7, "epsilon_high": 0.4}),
        ("chord", {}),
        ("chord", {"mu_peak": 0.9, "mu_valley": 0.05, "warmup_steps": 6, "decay_steps": 9, "weight": "none"}),
    ],
)
@SOME
@given(batch=batches())
def test_mixed_losses_equal_their_formulas(name: str, args: dict[str, object], batch: Batch) -> None:
    check(LOSSES[name].function, REFERENCES[name], batch, **args)


def test_mu_rises_falls_and_stays() -> None:
    course = [mu_at(step, 0.8, 0.2, 2, 4) for step in range(8)]
    assert course == pytest.approx(
        [0.0, 0.4, 0.8, 0.2 + 0.6 * (1 + math.sqrt(0.5)) / 2, 0.5, 0.2878679656, 0.2, 0.2]
    )
    assert mu_at(0, 0.8, 0.2, 0, 0) == 0.2


@pytest.mark.slow
@SOME
@given(batch=batches(), cut=st.integers(0, 4))
def test_a_step_cut_anywhere_is_mu_of_one_mean_and_the_rest_of_the_other(batch: Batch, cut: int) -> None:
    """(1 - mu) mean over our tokens + mu mean over the experts', though cut into two micro-batches."""
    whole, mu = batch.context(), 0.3
    share = expert_share(whole.mask, whole.is_expert, "token_mean", rollouts=len(batch.mask))
    tokens = whole.mask.sum()
    got = sum(
        aggregate(
            mix(_rows(whole, rows, share), mu=mu), whole.mask[rows], "token_mean", tokens=tokens, rollouts=1
        )
        for rows in (slice(0, cut), slice(cut, None))
    )
    terms: dict[bool, list[float]] = {False: [], True: []}
    for b in range(len(batch.mask)):
        reference = sft_reference if batch.is_expert[b] else ppo_clip_reference
        row = reference(batch, b, batch.logprobs[b])
        terms[batch.is_expert[b]] += [row[t] for t in batch.trained(b)]
    means = {kind: math.fsum(values) / max(len(values), 1) for kind, values in terms.items()}
    assert float(got.detach()) == pytest.approx((1 - mu) * means[False] + mu * means[True], rel=1e-9)


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_without_the_share_of_the_experts_they_say_so(batch: Batch) -> None:
    context = dataclasses.replace(batch.context(), expert_share=None)
    for loss in (mix, chord):
        with pytest.raises(TrainingError, match="no `expert_share`"):
            loss(context)


def _rows(context: LossContext, rows: slice, share: torch.Tensor) -> LossContext:
    fields = {
        field.name: value[rows]
        for field in dataclasses.fields(context)
        if isinstance(value := getattr(context, field.name), torch.Tensor) and value.dim()
    }
    return dataclasses.replace(context, **fields, expert_share=share)
