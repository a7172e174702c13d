"""The length-bias alarm on lengths of a known distribution."""

from __future__ import annotations

import numpy as np
import pytest

from explorers.ledger import Cost, Ledger
from rft_data.core.words import BurnCause

MEAN = 200.0


def play(ledger: Ledger, lengths: np.ndarray, size: int) -> None:
    """One group: the `size` shortest are kept, the others cancelled when the last of them arrives."""
    cut = np.sort(lengths)[size - 1]
    for length in lengths:
        fate = None if length <= cut else BurnCause.CANCELLED
        ledger.close(Cost(tokens=int(min(length, cut))), fate, compared=True)


def test_lengths_of_kept_rollouts_are_compared_with_what_the_cancelled_would_have_been() -> None:
    rng, ledger = np.random.default_rng(0), Ledger()
    kept, started = [], []
    for _ in range(51):
        lengths = rng.exponential(MEAN, 10)
        play(ledger, lengths, 8)
        kept += sorted(lengths)[:8]
        started += list(lengths)
    ratio = ledger.take()["kept_length_ratio"]
    assert ratio == pytest.approx(np.mean(kept) / np.mean(started), rel=0.1)
    assert ratio == pytest.approx(0.64, abs=0.06)


def test_a_bias_is_warned_of_once_and_not_before_there_are_enough_rollouts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng, ledger = np.random.default_rng(1), Ledger()
    warnings = []
    for _ in range(12):
        play(ledger, rng.exponential(MEAN, 10), 6)
        ledger.take()
        warnings.append(caplog.text.count("training sees too many short ones"))
    assert warnings == [0] * 6 + [1] * 6


def test_groups_without_losses_have_a_ratio_of_one_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    rng, ledger = np.random.default_rng(2), Ledger()
    for _ in range(20):
        play(ledger, rng.exponential(MEAN, 8), 8)
    assert ledger.take()["kept_length_ratio"] == pytest.approx(1.0)
    assert not [record for record in caplog.records if record.name == "explorers.ledger"]


def test_a_few_failures_of_rollouts_of_one_length_are_no_bias(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for n in range(100):
        failed = n % 10 == 0
        ledger.close(Cost(tokens=50 if failed else 100), BurnCause.FAILED if failed else None, compared=True)
    assert ledger.take()["kept_length_ratio"] == pytest.approx(0.95, abs=0.01)
    assert not [record for record in caplog.records if record.name == "explorers.ledger"]
