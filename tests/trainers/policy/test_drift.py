"""Ratio statistics on hand-made numbers."""

from __future__ import annotations

import math

import pytest
import torch

from trainers.models.nats import MAX_NATS
from trainers.policy.collate import NO_VERSION
from trainers.policy.drift import Drift


def test_take_counts_sampled_tokens_of_every_micro_batch_once() -> None:
    drift = Drift()
    log2, off = math.log(2), 9.0
    drift.add(torch.tensor([[0.0, log2, off]]), torch.tensor([[1, 1, 0]]), torch.tensor([4]))
    drift.add(
        torch.tensor([[-log2, off, off], [log2, log2, off]]),
        torch.tensor([[1, 0, 0], [1, 1, 0]]),
        torch.tensor([5, NO_VERSION]),
    )
    report = drift.take()
    ratios = [1.0, 2.0, 0.5, 2.0, 2.0]
    assert report.metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(sum(ratios) / 5)
    assert report.metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(2)
    assert report.metrics["sampling/importance_sampling_ratio/p99"] == pytest.approx(2)
    assert report.metrics["sampling/importance_sampling_ratio/min"] == pytest.approx(0.5)
    difference = "sampling/sampling_logp_difference"
    assert report.metrics[f"{difference}/mean"] == pytest.approx(4 / 5 * log2)
    assert report.metrics[f"{difference}/max"] == pytest.approx(log2)
    k3 = sum(r - 1 - math.log(r) for r in ratios) / 5
    assert report.metrics["kl_rollout"] == pytest.approx(k3)
    assert report.ess == {4: pytest.approx(9 / (2 * 5)), 5: pytest.approx(1)}
    assert drift.take().metrics == {}


def test_take_keeps_absurd_ratios_finite() -> None:
    drift = Drift()
    drift.add(torch.tensor([[1e9, -1e9]]), torch.tensor([[1, 1]]), torch.tensor([0]))
    report = drift.take()
    most = math.exp(MAX_NATS)
    assert report.metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(most)
    assert report.metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(most / 2)
    assert report.metrics["kl_rollout"] == pytest.approx((most - MAX_NATS - 1 + MAX_NATS - 1) / 2)
    assert report.metrics["sampling/importance_sampling_ratio/p99"] == pytest.approx(0.99 * most)
    assert report.ess[0] == pytest.approx(0.5)
    assert 10 < MAX_NATS < math.log(torch.finfo(torch.float32).max)


def test_weighted_reports_what_the_cap_changed() -> None:
    drift = Drift()
    drift.add(torch.zeros(1, 4), torch.ones(1, 4), torch.tensor([0]))
    drift.weighted(torch.tensor([1.1, 0.5, 0.0, 1.0]), 1.1)
    metrics = drift.take().metrics
    assert metrics["importance/capped"] == 0.5
    assert metrics["importance/mean"] == pytest.approx(0.65)
