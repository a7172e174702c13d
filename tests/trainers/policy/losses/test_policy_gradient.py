"""policy_gradient, importance_sampling and topr against their formulas in plain Python."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.losses import LOSSES
from trainers.policy.losses.policy_gradient import topr


def policy_gradient_reference(batch: Batch, b: int, logprobs: list[float]) -> list[float]:
    return [-a * logprob for a, logprob in zip(batch.advantages[b], logprobs, strict=True)]


def fixed_ratio(batch: Batch, b: int, t: int, level: str) -> float:
    """pi / old of the token or the row, no gradient; e^±60 beyond 60 nats."""
    columns = batch.own(b) if level == "sequence" else [t]
    nats = sum(batch.logprobs[b][s] - batch.old[b][s] for s in columns)
    return math.exp(min(max(nats, -60.0), 60.0))


def importance_sampling_reference(
    batch: Batch, b: int, logprobs: list[float], cap: float | None = 2.0, level: str = "token"
) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        weight = fixed_ratio(batch, b, t, level)
        if cap is not None and weight > cap:
            weight = cap
        out[t] = -weight * batch.advantages[b][t] * logprobs[t]
    return out


def topr_reference(batch: Batch, b: int, logprobs: list[float], level: str = "sequence") -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        advantage = batch.advantages[b][t]
        weight = min(fixed_ratio(batch, b, t, level), 1.0) if advantage < 0 else 1.0
        out[t] = -weight * advantage * logprobs[t]
    return out


REFERENCES = {
    "policy_gradient": policy_gradient_reference,
    "importance_sampling": importance_sampling_reference,
    "topr": topr_reference,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("policy_gradient", {}),
        ("importance_sampling", {}),
        ("importance_sampling", {"cap": None}),
        ("importance_sampling", {"cap": 1.0, "level": "sequence"}),
        ("topr", {}),
        ("topr", {"level": "token"}),
    ],
)
@SOME
@given(batch=batches())
def test_policy_gradient_losses_equal_their_formulas(
    name: str, args: dict[str, object], batch: Batch
) -> None:
    check(LOSSES[name].function, REFERENCES[name], batch, **args)


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_topr_leaves_good_answers_at_full_weight(batch: Batch) -> None:
    batch.advantages = [[abs(a) for a in row] for row in batch.advantages]
    check(topr, policy_gradient_reference, batch)
