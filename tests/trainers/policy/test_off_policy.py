"""Importance weights against plain Python, and the settings that are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rft_data.core.errors import RecipeError
from trainers.policy.grpo_config import grpo_config
from trainers.policy.off_policy import OffPolicy, off_policy_corrections

CAP = 1.7


def reference(importance: str, nats: list[float], mask: list[int]) -> list[float]:
    """The weights of one row's sampled tokens, one at a time."""
    ratios = [math.exp(x) for x, m in zip(nats, mask, strict=True) if m]
    if importance == "token_truncated":
        return [min(w, CAP) for w in ratios]
    if importance == "sequence_truncated":
        return [min(math.prod(ratios), CAP)] * len(ratios)
    return [w if 1 / CAP <= w <= CAP else 0.0 for w in ratios]


@pytest.mark.parametrize("importance", ["token_truncated", "sequence_truncated", "masked"])
def test_weights_equal_the_formula_on_every_sampled_token(importance: str) -> None:
    rng = np.random.default_rng(0)
    nats = rng.normal(0, 0.6, (5, 9))
    mask = (rng.random((5, 9)) < 0.7).astype(int)
    nats[mask == 0] = 50.0  # what is not sampled must not count
    got = OffPolicy("recompute", importance, CAP).weights(torch.from_numpy(nats), torch.from_numpy(mask))
    rows = zip(nats.tolist(), mask.tolist(), strict=True)
    want = [w for row_nats, row_mask in rows for w in reference(importance, row_nats, row_mask)]
    np.testing.assert_allclose(got.numpy()[mask == 1], want, rtol=1e-12)
    assert 0 < sum(w in (0.0, CAP) for w in want) < len(want)


@pytest.mark.parametrize("importance", ["token_truncated", "sequence_truncated", "masked"])
def test_weights_of_absurd_ratios_are_finite_and_of_equal_policies_one(importance: str) -> None:
    off_policy = OffPolicy("recompute", importance, CAP)
    mask = torch.ones(1, 3, dtype=torch.long)
    assert off_policy.weights(torch.zeros(1, 3), mask).eq(1).all()
    for absurd in (1e6, -1e6):
        weights = off_policy.weights(torch.full((1, 3), absurd), mask)
        assert torch.isfinite(weights).all()
        assert weights.max() <= CAP


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"old_logprob": "rollout"}, "has no 'old_logprob'; did you mean 'old_logprobs'"),
        (
            {"old_logprobs": "stored"},
            "off_policy.old_logprobs is 'stored', must be one of rollout, recompute",
        ),
        ({"old_logprobs": "recompute", "importance": "mask"}, "did you mean 'masked'"),
        ({"importance": "masked"}, "old / rollout policy, which is then always 1"),
        ({"old_logprobs": "recompute", "importance": "masked", "cap": 1.0}, "cap is 1, must be a finite"),
        ({"old_logprobs": "recompute", "cap": math.inf}, "cap is inf, must be a finite"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_reason(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = grpo_config(tmp_path, steps=1, rows_per_step=4, options={}, seed=0)
    with pytest.raises(RecipeError, match=message):
        off_policy_corrections(settings, config)


def test_recompute_is_refused_for_a_loss_that_weighs_by_the_rollout_policy(tmp_path: Path) -> None:
    config = grpo_config(tmp_path, steps=1, rows_per_step=4, options={"loss_type": "vespo"}, seed=0)
    with pytest.raises(RecipeError, match="vespo weighs each sequence by its ratio"):
        off_policy_corrections({"old_logprobs": "recompute"}, config)
    assert off_policy_corrections({"old_logprobs": "rollout"}, config) == OffPolicy()
