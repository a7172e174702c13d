"""rec against its formula in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.losses.clipped import ppo_clip
from trainers.policy.losses.rec import rec


def in_range(mode: str, r: float, a: float, low: float, high: float, ring: tuple[float, float]) -> bool:
    inner = 1 - low <= r <= 1 + high
    if mode == "one_side":
        return (a >= 0 and r <= 1 + high) or (a <= 0 and r >= 1 - low)
    if mode == "two_side":
        return inner
    if mode == "ring":
        return inner or (a >= 0 and r <= 1 - ring[0]) or (a <= 0 and r >= 1 + ring[1])
    return True


def rec_reference(
    batch: Batch,
    b: int,
    logprobs: list[float],
    clip_mode: str = "one_side",
    weight: str = "none",
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    ring: tuple[float, float] = (0.6, 2.0),
    temperature: float = 1.0,
    k2: float = 0.0,
) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        advantage = batch.advantages[b][t]
        ratio = math.exp(batch.logprobs[b][t] - batch.old[b][t])
        factor = {"none": 1.0, "importance": ratio, "advantage": math.exp(min(advantage / temperature, 60))}
        if in_range(clip_mode, ratio, advantage, epsilon_low, epsilon_high, ring):
            out[t] = -factor[weight] * advantage * logprobs[t]
        out[t] += k2 * (logprobs[t] - batch.old[b][t]) ** 2
    return out


REFERENCES = {"rec": rec_reference}


@pytest.mark.slow
@pytest.mark.parametrize("clip_mode", ["none", "one_side", "two_side", "ring"])
@pytest.mark.parametrize("weight", ["none", "importance", "advantage"])
@SOME
@given(batch=batches())
def test_rec_equals_its_formula(clip_mode: str, weight: str, batch: Batch) -> None:
    check(rec, rec_reference, batch, clip_mode=clip_mode, weight=weight)


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_rec_with_every_number_changed_equals_its_formula(batch: Batch) -> None:
    check(
        rec,
        rec_reference,
        batch,
        clip_mode="ring",
        weight="advantage",
        epsilon_low=0.1,
        epsilon_high=0.3,
        ring=(0.3, 0.5),
        temperature=0.5,
        k2=0.1,
    )


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_one_sided_importance_has_the_gradient_of_ppo(batch: Batch) -> None:
    context = batch.context()
    gradients = [
        torch.autograd.grad((loss * context.mask).sum(), context.logprobs)[0]
        for loss in (rec(context, "one_side", "importance"), ppo_clip(context))
    ]
    assert torch.allclose(*gradients, rtol=1e-12, atol=1e-12)
