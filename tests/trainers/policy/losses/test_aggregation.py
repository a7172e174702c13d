"""The reduction of a step against plain sums, however the step is cut."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.policy.losses.proof import SOME, Batch, batches
from trainers.policy.losses.aggregation import aggregate, expert_share
from trainers.policy.losses.loss import Aggregation

KINDS: list[Aggregation] = ["token_mean", "row_mean", "row_sum"]


def whole_step(batch: Batch, kind: str) -> float:
    """The reduction of the log probabilities of all rows at once."""
    rows = [[batch.logprobs[b][t] for t in batch.trained(b)] for b in range(len(batch.mask))]
    if kind == "token_mean":
        return sum(map(math.fsum, rows)) / max(sum(map(len, rows)), 1)
    sums = [math.fsum(row) / (max(len(row), 1) if kind == "row_mean" else 1) for row in rows]
    return math.fsum(sums) / len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(
    batch=batches(),
    cuts=st.lists(st.integers(0, 4), max_size=3),
    world=st.integers(1, 3),
    padding=st.integers(0, 3),
)
def test_the_parts_of_a_step_add_up_to_the_whole(
    kind: Aggregation, batch: Batch, cuts: list[int], world: int, padding: int
) -> None:
    """Micro-batches cut anywhere, dealt to ranks whose results are averaged, some rows padding."""
    rows = len(batch.mask)
    terms = torch.tensor(batch.logprobs, dtype=torch.float64)
    mask = torch.tensor(batch.mask, dtype=torch.float64)
    tokens = mask.sum()
    terms = torch.cat([terms, torch.full((padding, terms.shape[1]), 7.0, dtype=torch.float64)])
    mask = torch.cat([mask, torch.zeros(padding, mask.shape[1], dtype=torch.float64)])
    edges = [0, *sorted(cuts), len(mask)]
    ranks = [0.0] * world
    for place, (start, stop) in enumerate(itertools.pairwise(edges)):
        part = aggregate(terms[start:stop], mask[start:stop], kind, tokens=tokens, rollouts=rows, world=world)
        ranks[place % world] += part.item()
    assert sum(ranks) / world == pytest.approx(whole_step(batch, kind), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_a_token_is_zero(kind: Aggregation) -> None:
    terms = torch.ones(2, 3, requires_grad=True)
    value = aggregate(terms, torch.zeros(2, 3), kind, tokens=0, rollouts=2)
    value.backward()
    assert value.item() == 0.0
    assert terms.grad is not None
    assert not terms.grad.any()


@pytest.mark.slow
@SOME
@given(batch=batches())
def test_the_share_of_experts_is_that_of_what_is_averaged(batch: Batch) -> None:
    mask, experts = torch.tensor(batch.mask), torch.tensor(batch.is_expert)
    rows = len(batch.mask)
    assert expert_share(mask, experts, "token_mean", rollouts=rows).item() == pytest.approx(batch.share())
    for kind in ("row_mean", "row_sum"):
        share = expert_share(mask, experts, kind, rollouts=rows)
        assert share.item() == pytest.approx(sum(batch.is_expert) / rows)
