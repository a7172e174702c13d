"""decoupled_ppo and loglinear_ppo against their formulas in plain Python."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given

from rft_data.core.errors import TrainingError
from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from tests.trainers.policy.losses.test_clipped import surrogate
from trainers.policy.losses import LOSSES
from trainers.policy.losses.clipped import ppo_clip
from trainers.policy.losses.decoupled import decoupled_ppo, loglinear_ppo


def decoupled_reference(
    batch: Batch,
    b: int,
    logprobs: list[float],
    prox: list[float],
    cap: float = 2.0,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        weight = min(math.exp(min(prox[t] - batch.sampled[b][t], 60.0)), cap)
        ratio = math.exp(logprobs[t] - prox[t])
        out[t] = weight * surrogate(ratio, batch.advantages[b][t], epsilon_low, epsilon_high)
    return out


def decoupled_ppo_reference(batch: Batch, b: int, logprobs: list[float], **args: float) -> list[float]:
    return decoupled_reference(batch, b, logprobs, batch.prox[b], **args)


def loglinear_ppo_reference(batch: Batch, b: int, logprobs: list[float], **args: float) -> list[float]:
    age = max(batch.versions_behind[b], 1)
    line = [
        stored + (age - 1) / age * (now - stored)
        for stored, now in zip(batch.sampled[b], batch.logprobs[b], strict=True)
    ]
    return decoupled_reference(batch, b, logprobs, line, **args)


REFERENCES = {"decoupled_ppo": decoupled_ppo_reference, "loglinear_ppo": loglinear_ppo_reference}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("args", [{}, {"cap": 0.9, "epsilon_low": 0.1, "epsilon_high": 0.5}])
@SOME
@given(batch=batches())
def test_decoupled_losses_equal_their_formulas(name: str, args: dict[str, float], batch: Batch) -> None:
    check(LOSSES[name].function, REFERENCES[name], batch, **args)


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_a_row_one_version_behind_gets_plain_ppo(batch: Batch) -> None:
    batch.versions_behind = [step % 2 for step in range(len(batch.mask))]
    batch.old = batch.sampled
    assert torch.allclose(loglinear_ppo(batch.context()), ppo_clip(batch.context()))


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_what_is_missing_is_named(batch: Batch) -> None:
    context = dataclasses.replace(batch.context(), prox=None, versions_behind=None)
    with pytest.raises(TrainingError, match="no `prox`"):
        decoupled_ppo(context)
    with pytest.raises(TrainingError, match="no `versions_behind`"):
        loglinear_ppo(context)
