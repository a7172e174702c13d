"""opmd and sppo against their formulas in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.losses import LOSSES
from trainers.policy.losses.mirror import opmd


def opmd_reference(
    batch: Batch, b: int, logprobs: list[float], tau: float = 1.0, form: str = "simple"
) -> list[float]:
    own = batch.own(b)
    drift = {t: logprobs[t] - batch.old[b][t] for t in own}
    out = [0.0] * len(logprobs)
    for t in own:
        out[t] = -batch.advantages[b][t] * logprobs[t]
        if form == "simple":
            out[t] /= 1 + tau
        else:
            out[t] += 0.5 * tau * drift[t] * sum(drift.values())
    return out


def sppo_reference(batch: Batch, b: int, logprobs: list[float], epsilon: float = 0.3) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        ratio = min(max(math.exp(logprobs[t] - batch.old[b][t]), 1 / (1 + epsilon)), 1 + epsilon)
        out[t] = -batch.advantages[b][t] * math.log(ratio)
    return out


REFERENCES = {"opmd": opmd_reference, "sppo": sppo_reference}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("opmd", {}),
        ("opmd", {"tau": 0.3}),
        ("opmd", {"tau": 0.3, "form": "kimi"}),
        ("sppo", {}),
        ("sppo", {"epsilon": 1.5}),
    ],
)
@SOME
@given(batch=batches())
def test_mirror_losses_equal_their_formulas(name: str, args: dict[str, object], batch: Batch) -> None:
    check(LOSSES[name].function, REFERENCES[name], batch, **args)


@pytest.mark.slow
@SOME
@given(batch=batches(experts=False))
def test_kimis_gradient_is_that_of_the_squared_regression(batch: Batch) -> None:
    """(r - tau log Z - tau log(pi / old))^2 by row, whose gradient is 2 tau times the loss's."""
    tau = 0.4
    reward = [float(len(row) % 3) - 0.5 for row in batch.mask]
    batch.advantages = [[r * kept for kept in row] for r, row in zip(reward, batch.mask, strict=True)]
    context = batch.context()
    (ours,) = torch.autograd.grad((opmd(context, tau, "kimi") * context.mask).sum(), context.logprobs)
    residual = torch.tensor(reward) - tau * ((context.logprobs - context.old) * context.mask).sum(dim=1)
    (regression,) = torch.autograd.grad(residual.square().sum(), context.logprobs)
    assert torch.allclose(2 * tau * ours, regression, rtol=1e-9, atol=1e-9)
