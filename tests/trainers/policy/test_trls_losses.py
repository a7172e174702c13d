"""Every loss of TRL's that a preset names, through our trainer: the papers in float64, row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from rft_data.core.errors import TrainingError
from rft_data.recipe.algorithms import ALGORITHMS
from tests.trainers.policy.row_mean_loss import LOSS as ROW_MEAN
from tests.trainers.policy.test_experience_grpo import relative_difference
from tests.trainers.policy.test_objective import got_gradient, wanted_gradient, with_forks
from trainers.policy.losses.context import LossContext

Rows = Callable[..., pa.Table]
Terms = Callable[[LossContext], torch.Tensor]
LONGEST = 20
"""Dr. GRPO's constant."""


def clipped(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """arXiv:1707.06347, equation 7."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def by_token(low: float, high: float) -> Terms:
    """The token's ratio."""
    return lambda c: clipped((c.logprobs - c.old).exp(), c.advantages, low, high)


def by_sequence(low: float, high: float) -> Terms:
    """The geometric mean of the row's ratios (GSPO, arXiv:2507.18071, equation 7)."""

    def terms(c: LossContext) -> torch.Tensor:
        nats = ((c.logprobs - c.old) * c.mask).sum() / c.mask.sum().clamp(min=1)
        return clipped(nats.exp().expand_as(c.logprobs), c.advantages, low, high)

    return terms


def cispo(c: LossContext) -> torch.Tensor:
    """arXiv:2506.13585, equation 4: no lower bound."""
    return -(c.logprobs - c.old).exp().clamp(max=5.0).detach() * c.advantages * c.logprobs


def sapo(c: LossContext) -> torch.Tensor:
    """arXiv:2511.20347, equation 6."""
    tau = torch.where(c.advantages > 0, 1.0, 1.05).double()
    ratio = (c.logprobs - c.old).exp()
    return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * c.advantages


def vespo(c: LossContext) -> torch.Tensor:
    """arXiv:2602.10693: phi(w) = w^k exp(lambda (1 - w)), w the product of the row's ratios, no gradient."""
    w = ((c.logprobs - c.old) * c.mask).sum().exp().detach().clamp(min=1e-8)
    k = torch.where(c.advantages >= 0, 2.0, 3.0).double()
    rate = torch.where(c.advantages >= 0, 3.0, 2.0).double()
    return -(w**k) * (rate * (1 - w)).exp() * c.advantages * c.logprobs


def over_longest(terms: Terms) -> Terms:
    """Divided by a constant (arXiv:2503.20783), then summed over the row."""
    return lambda c: terms(c) / LONGEST


REFERENCES: dict[str, tuple[Terms, str]] = {
    "grpo": (by_token(0.2, 0.2), "row_mean"),
    "dr_grpo": (over_longest(by_token(0.2, 0.2)), "row_sum"),
    "dapo": (by_token(0.2, 0.28), "token_mean"),
    "gspo": (by_sequence(3e-4, 4e-4), "row_mean"),
    "cispo": (cispo, "token_mean"),
    "sapo": (sapo, "row_mean"),
    "luspo": (by_sequence(2e-3, 2.5e-3), "row_sum"),
    "vespo": (vespo, "token_mean"),
}


def options_of(name: str) -> dict[str, Any]:
    """What the preset gives TRL."""
    extra = {"max_completion_length": LONGEST} if name == "dr_grpo" else {}
    return {**ALGORITHMS[name].trl_loss, **extra}


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_first_gradient_equals_the_papers_formula(
    name: str, accumulate: int, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 7, empty_rows=1)
    options = {**options_of(name), "gradient_accumulation_steps": accumulate}
    got = got_gradient(model_path, table, 8, {}, options, tmp_path)
    assert relative_difference(got, wanted_gradient(model_path, table, *REFERENCES[name])) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "ours"])
def test_several_rows_of_a_rollout_have_the_weight_of_one(
    name: str, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    """One rollout of two rows beside rollouts of one: the papers' means are over rollouts."""
    table = with_forks(rows_table(4, 7, empty_rows=1))
    options = {"gradient_accumulation_steps": 2}
    terms, kind = (ROW_MEAN.function, "row_mean") if name == "ours" else REFERENCES[name]
    settings = {}
    if name == "ours":
        settings = {"loss": {"use": "tests.trainers.policy.row_mean_loss:LOSS"}}
    else:
        options |= options_of(name)
    got = got_gradient(model_path, table, 8, settings, options, tmp_path)
    assert relative_difference(got, wanted_gradient(model_path, table, terms, kind)) < 1e-5


def test_a_kl_term_that_averages_over_rows_is_refused(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    options = {**options_of("grpo"), "beta": 0.1}
    with pytest.raises(TrainingError, match="8 rows of 6 rollouts"):
        got_gradient(model_path, with_forks(rows_table(4, 8)), 8, {}, options, tmp_path)


@pytest.mark.slow
def test_bnpo_is_a_mean_over_the_tokens_of_a_micro_batch(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 8)
    got = got_gradient(model_path, table, 8, {}, {"loss_type": "bnpo"}, tmp_path)
    assert relative_difference(got, wanted_gradient(model_path, table, by_token(0.2, 0.2))) < 1e-5


@pytest.mark.slow
def test_two_sided_clip_bounds_the_ratio_of_negative_advantages(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 8)
    options = {"loss_type": "dapo", "delta": 1.3}
    got = got_gradient(model_path, table, 8, {}, options, tmp_path)

    def terms(c: LossContext) -> torch.Tensor:
        """arXiv:2505.07291 (INTELLECT-2), equation 2."""
        ratio = (c.logprobs - c.old).exp()
        return -torch.minimum(ratio.clamp(max=1.3) * c.advantages, ratio.clamp(0.8, 1.2) * c.advantages)

    assert relative_difference(got, wanted_gradient(model_path, table, terms)) < 1e-5


def test_every_loss_of_trls_that_a_preset_names_has_a_reference() -> None:
    named = {
        (preset.trl_loss["loss_type"], preset.trl_loss.get("importance_sampling_level", "token"))
        for preset in ALGORITHMS.values()
        if preset.loss is None
    }
    proved = {
        (
            ALGORITHMS[name].trl_loss["loss_type"],
            ALGORITHMS[name].trl_loss.get("importance_sampling_level", "token"),
        )
        for name in REFERENCES
    }
    assert named == proved
