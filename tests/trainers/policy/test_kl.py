"""KL estimators and the adaptive coefficient against plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from rft_data.core.errors import RecipeError, TrainingError
from rft_data.recipe import names
from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.batch_ops import BATCH_OPS
from trainers.policy.kl import KL_ESTIMATORS, AdaptiveKl, bias_corrected
from trainers.policy.losses import LOSSES
from trainers.policy.losses.context import LossContext


def k3_of(nats: float) -> float:
    return math.exp(nats) - 1 - nats


REFERENCES = {
    "k1": lambda pi, ref: pi - ref,
    "k2": lambda pi, ref: 0.5 * (pi - ref) ** 2,
    "k3": lambda pi, ref: k3_of(ref - pi),
    "abs": lambda pi, ref: abs(pi - ref),
    "low_var": lambda pi, ref: min(k3_of(min(max(ref - pi, -20.0), 20.0)), 10.0),
}


def reference(batch: Batch, b: int, logprobs: list[float], name: str, corrected: bool) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.trained(b):
        out[t] = REFERENCES[name](logprobs[t], batch.ref[b][t])
        if corrected:
            out[t] *= math.exp(logprobs[t] - batch.old[b][t])
    return out


def term(context: LossContext, name: str, corrected: bool) -> torch.Tensor:
    assert context.ref is not None
    kl = KL_ESTIMATORS[name](context.logprobs, context.ref)
    return bias_corrected(kl, context.logprobs, context.old) if corrected else kl


def test_every_estimator_has_a_reference() -> None:
    assert set(REFERENCES) == set(KL_ESTIMATORS)


@pytest.mark.slow
@pytest.mark.parametrize("name", KL_ESTIMATORS)
@pytest.mark.parametrize("corrected", [False, True])
@SOME
@given(batch=batches(experts=False))
def test_an_estimator_equals_its_formula(name: str, corrected: bool, batch: Batch) -> None:
    check(term, reference, batch, name=name, corrected=corrected)


def gradients(name: str, corrected: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """By the logits of a policy over four tokens: the estimator's mean gradient, and KL's both ways.

    The mean is exact: all four outcomes, weighted by the probability with which they are sampled.
    """
    generator = torch.Generator().manual_seed(1)
    logits, target, older = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    logprobs, ref = logits.log_softmax(0), target.log_softmax(0)
    old = older.log_softmax(0) if corrected else logprobs.detach()
    kl = KL_ESTIMATORS[name](logprobs, ref)
    terms = bias_corrected(kl, logprobs, old) if corrected else kl
    objectives = (
        (old.exp() * terms).sum(),
        (logprobs.exp() * (logprobs - ref)).sum(),
        (ref.exp() * (ref - logprobs)).sum(),
    )
    found = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in objectives]
    return found[0], found[1], found[2], objectives[0].detach() - objectives[1].detach()


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name: str) -> None:
    assert gradients(name, corrected=False)[3].abs() < 1e-12
    assert gradients(name, corrected=True)[3].abs() < 1e-12


def test_the_gradient_of_k1_in_a_loss_is_zero_on_average() -> None:
    assert gradients("k1", corrected=False)[0].abs().max() < 1e-12


def test_the_gradient_of_k2_is_that_of_the_kl() -> None:
    mean, to_ref, _, _ = gradients("k2", corrected=False)
    assert torch.allclose(mean, to_ref, atol=1e-12)


def test_the_gradient_of_k3_is_that_of_the_other_kl() -> None:
    mean, to_ref, from_ref, _ = gradients("k3", corrected=False)
    assert torch.allclose(mean, from_ref, atol=1e-12)
    assert not torch.allclose(mean, to_ref, atol=1e-2)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_bias_correction_makes_the_gradient_that_of_the_kl(name: str) -> None:
    mean, to_ref, _, _ = gradients(name, corrected=True)
    assert torch.allclose(mean, to_ref, atol=1e-12)


def test_a_reference_a_hundred_nats_away_stays_finite() -> None:
    for name, estimator in KL_ESTIMATORS.items():
        logprobs = torch.tensor([-100.0, -0.1], requires_grad=True)
        kl = estimator(logprobs, torch.tensor([-0.1, -100.0]))
        kl.sum().backward()
        assert torch.isfinite(kl).all(), name
        assert torch.isfinite(logprobs.grad).all(), name


def test_the_coefficient_follows_the_controllers_formula() -> None:
    controller = AdaptiveKl(0.1, target=2.0, horizon=100)
    wanted = 0.1
    for kl, rows in [(2.0, 10), (2.2, 10), (50.0, 10), (0.0, 30), (1.9, 0), (9.0, 1000)]:
        controller.update(kl, rows)
        wanted *= 1 + max(-0.2, min(0.2, kl / 2.0 - 1)) * min(rows, 100) / 100
        assert controller.coef == pytest.approx(wanted, rel=1e-12)


def test_the_coefficient_survives_a_checkpoint() -> None:
    controller = AdaptiveKl(0.1, target=2.0, horizon=100)
    controller.update(9.0, 50)
    resumed = AdaptiveKl(0.1, target=2.0, horizon=100)
    resumed.load_state_dict(controller.state_dict())
    assert resumed.coef == controller.coef == pytest.approx(0.11)


@pytest.mark.parametrize("bad", [{"coef": 0.0}, {"target": -1.0}, {"horizon": math.inf}, {"coef": math.nan}])
def test_a_controller_that_could_not_move_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=f"kl.{next(iter(bad))} is"):
        AdaptiveKl(**{"coef": 0.1, "target": 1.0, "horizon": 10.0} | bad)


def test_a_kl_that_is_not_finite_is_refused() -> None:
    with pytest.raises(TrainingError, match="KL to the reference is nan"):
        AdaptiveKl(0.1, 1.0, 10).update(math.nan, 4)


def test_recipes_know_the_names_of_estimators_losses_and_batch_operators() -> None:
    assert set(names.KL_ESTIMATORS) == set(KL_ESTIMATORS)
    assert set(names.LOSSES) == set(LOSSES)
    assert set(names.BATCH_OPS) == set(BATCH_OPS)
