"""sft and raft against their formulas in plain Python."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given

from rft_data.core.errors import TrainingError
from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.losses import LOSSES
from trainers.policy.losses.supervised import raft


def sft_reference(
    batch: Batch, b: int, logprobs: list[float], weight: str = "none", cutoff: float = 1.0
) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.trained(b):
        p = math.exp(batch.logprobs[b][t])
        factor = {"none": 1.0, "probability": p, "phi": p * (1 - p)}[weight]
        out[t] = -factor * min(logprobs[t], math.log(cutoff))
    return out


def raft_reference(
    batch: Batch,
    b: int,
    logprobs: list[float],
    select: str = "reward",
    threshold: float = 0.0,
    weight: str = "none",
    cap: float = 2.0,
) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.trained(b):
        measure = batch.rewards[b] if select == "reward" else batch.advantages[b][t]
        factor = 1.0
        if weight == "importance" and not batch.is_expert[b]:
            factor = min(math.exp(batch.logprobs[b][t] - batch.old[b][t]), cap)
        if batch.is_expert[b] or measure > threshold:
            out[t] = -factor * logprobs[t]
    return out


REFERENCES = {"sft": sft_reference, "raft": raft_reference}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sft", {}),
        ("sft", {"weight": "probability"}),
        ("sft", {"weight": "phi", "cutoff": 0.6}),
        ("raft", {}),
        ("raft", {"threshold": 0.5, "weight": "importance"}),
        ("raft", {"select": "advantage", "weight": "importance", "cap": 1.0}),
    ],
)
@SOME
@given(batch=batches())
def test_supervised_losses_equal_their_formulas(name: str, args: dict[str, object], batch: Batch) -> None:
    check(LOSSES[name].function, REFERENCES[name], batch, **args)


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_raft_without_rewards_says_so(batch: Batch) -> None:
    context = dataclasses.replace(batch.context(), rewards=None)
    with pytest.raises(TrainingError, match="no `rewards`"):
        raft(context)
