"""The KL coefficient of a step: constant, or moved after each step and kept in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.policy.kl_term import KlTerm
from trainers.policy.step_kl import StepKl

_ADAPTIVE = KlTerm(coef=0.1, target=1.0, horizon=10)


def test_constant_coefficient_never_moves_and_writes_no_file(tmp_path: Path) -> None:
    constant = StepKl(KlTerm(coef=0.1))
    constant.add(5.0)
    constant.end_step(rows=10)
    constant.save(tmp_path)
    constant.load(tmp_path)
    assert (constant.coef, constant.is_adaptive, list(tmp_path.iterdir())) == (0.1, False, [])


def test_adaptive_coefficient_moves_by_the_sum_of_its_micro_batches_and_then_starts_from_zero() -> None:
    adaptive = StepKl(_ADAPTIVE)
    for part in (0.5, 0.6):  # 1.1 in all: a tenth above the target
        adaptive.add(part)
        assert adaptive.coef == 0.1
    adaptive.end_step(rows=10)
    assert adaptive.coef == pytest.approx(0.11)
    adaptive.add(1.0)  # on target, unless the step before is still counted
    adaptive.end_step(rows=10)
    assert adaptive.coef == pytest.approx(0.11)


def test_adaptive_coefficient_continues_from_a_checkpoint(tmp_path: Path) -> None:
    adaptive = StepKl(_ADAPTIVE)
    adaptive.add(2.0)
    adaptive.end_step(rows=10)
    adaptive.save(tmp_path)
    again = StepKl(_ADAPTIVE)
    again.load(tmp_path)
    assert again.coef == adaptive.coef == pytest.approx(0.12)
