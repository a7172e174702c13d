"""m2po against algorithm 1 of its paper, one removal at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.losses.m2po import m2po


def left_out(batch: Batch, threshold: float) -> set[tuple[int, int]]:
    """Tokens that the mask removes: the largest first, until the mean of what is left is small."""
    squares = {}
    for b in range(len(batch.mask)):
        for t in batch.own(b):
            nats, advantage = batch.logprobs[b][t] - batch.old[b][t], batch.advantages[b][t]
            if (advantage > 0 and nats > 0) or (advantage < 0 and nats < 0):
                squares[b, t] = nats * nats
    removed = set()
    while squares and math.fsum(squares.values()) / len(squares) > threshold:
        largest = max(squares, key=squares.__getitem__)
        removed.add(largest)
        del squares[largest]
    return removed


def m2po_reference(batch: Batch, b: int, logprobs: list[float], threshold: float = 0.04) -> list[float]:
    removed = left_out(batch, threshold)
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        if (b, t) not in removed:
            out[t] = -math.exp(logprobs[t] - batch.old[b][t]) * batch.advantages[b][t]
    return out


REFERENCES = {"m2po": m2po_reference}


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.04, 0.0004, 1.0])
@SOME
@given(batch=batches())
def test_m2po_equals_its_algorithm(threshold: float, batch: Batch) -> None:
    check(m2po, m2po_reference, batch, threshold=threshold)


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_m2po_keeps_the_bound_on_the_constrained_tokens(batch: Batch) -> None:
    context = batch.context()
    nats = (context.logprobs - context.old).detach() * context.mask * ~context.is_expert.unsqueeze(1)
    kept = (m2po(context) != 0) & (nats * context.advantages > 0)
    assert not kept.any() or nats[kept].square().mean() <= 0.04 + 1e-12


def test_an_outlier_is_left_out_and_small_drifts_stay() -> None:
    nats = torch.tensor([[0.1, 0.1, 3.0, -3.0]])
    batch = Batch(
        logprobs=[[-4.0] * 4],
        old=(-4.0 - nats).tolist(),
        sampled=[[-4.0] * 4],
        advantages=[[1.0] * 4],
        mask=[[1.0] * 4],
        entropies=[[0.0] * 4],
        is_expert=[False],
        ref=[[0.0] * 4],
        prox=[[0.0] * 4],
        rewards=[1.0],
        versions_behind=[0],
        step=0,
    )
    assert (m2po(batch.context()) != 0).tolist() == [[True, True, False, True]]
