"""ppo_clip, dual_clip and sequence_masking against their formulas in plain Python, and against TRL's."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.policy.losses.proof import SOME, Batch, batches, check
from trainers.policy.losses import LOSSES
from trainers.policy.losses.clipped import dual_clip, ppo_clip, sequence_masking


def surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def ppo_clip_reference(
    batch: Batch, b: int, logprobs: list[float], epsilon_low: float = 0.2, epsilon_high: float = 0.2
) -> list[float]:
    out = [0.0] * len(logprobs)
    for t in batch.own(b):
        ratio = math.exp(logprobs[t] - batch.old[b][t])
        out[t] = surrogate(ratio, batch.advantages[b][t], epsilon_low, epsilon_high)
    return out


def dual_clip_reference(
    batch: Batch, b: int, logprobs: list[float], max_ratio: float = 3.0, **epsilon: float
) -> list[float]:
    out = ppo_clip_reference(batch, b, logprobs, **epsilon)
    for t in batch.own(b):
        if batch.advantages[b][t] < 0:
            out[t] = min(out[t], -max_ratio * batch.advantages[b][t])
    return out


def sequence_masking_reference(
    batch: Batch, b: int, logprobs: list[float], threshold: float = 0.1, **epsilon: float
) -> list[float]:
    out = ppo_clip_reference(batch, b, logprobs, **epsilon)
    own = batch.own(b)
    drift = sum(batch.sampled[b][t] - batch.logprobs[b][t] for t in own) / max(len(own), 1)
    return [0.0 if batch.advantages[b][t] < 0 and drift > threshold else out[t] for t in range(len(out))]


REFERENCES = {
    "ppo_clip": ppo_clip_reference,
    "dual_clip": dual_clip_reference,
    "sequence_masking": sequence_masking_reference,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ppo_clip", {}),
        ("ppo_clip", {"epsilon_low": 0.1, "epsilon_high": 0.5}),
        ("dual_clip", {}),
        ("dual_clip", {"max_ratio": 1.1, "epsilon_high": 0.5}),
        ("sequence_masking", {}),
        ("sequence_masking", {"threshold": 0.0}),
    ],
)
@SOME
@given(batch=batches())
def test_clipped_losses_equal_their_formulas(name: str, args: dict[str, float], batch: Batch) -> None:
    check(LOSSES[name].function, REFERENCES[name], batch, **args)


def test_sequence_masking_drops_only_bad_tokens_of_drifted_rows() -> None:
    batch = Batch(
        logprobs=[[-1.0, -1.0], [-1.0, -1.0]],
        old=[[-1.0, -1.0], [-1.0, -1.0]],
        sampled=[[-0.7, -0.9], [-1.0, -0.9]],
        advantages=[[-1.0, 1.0], [-1.0, 1.0]],
        mask=[[1.0, 1.0], [1.0, 1.0]],
        entropies=[[0.0, 0.0], [0.0, 0.0]],
        is_expert=[False, False],
        ref=[[0.0, 0.0], [0.0, 0.0]],
        prox=[[0.0, 0.0], [0.0, 0.0]],
        rewards=[0.0, 0.0],
        versions_behind=[0, 0],
        step=0,
    )
    assert sequence_masking(batch.context(), threshold=0.1).tolist() == [[0.0, -1.0], [1.0, -1.0]]


def test_a_far_favoured_bad_token_is_bounded_by_dual_clip_only() -> None:
    batch = _one_token(logprob=-1.0, old=-31.0, advantage=-2.0)
    assert ppo_clip(batch.context()).item() == pytest.approx(2 * math.exp(30))
    assert dual_clip(batch.context()).item() == 6.0


def test_a_ratio_beyond_sixty_nats_is_finite_and_has_no_gradient() -> None:
    context = _one_token(logprob=-1.0, old=-100.0, advantage=-1.0).context(torch.float32)
    terms = ppo_clip(context)
    (gradient,) = torch.autograd.grad(terms.sum(), context.logprobs)
    assert terms.item() == pytest.approx(math.exp(60))
    assert gradient.item() == 0.0


@pytest.mark.slow
@SOME
@given(batch=batches(experts=False), delta=st.none() | st.sampled_from([1.5, 3.0]))
def test_clipping_equals_trls_dapo(batch: Batch, delta: float | None) -> None:
    """TRL's own `_compute_loss`, fed with these log probabilities instead of a model's."""
    context = batch.context()
    ours = dual_clip(context, max_ratio=delta) if delta else ppo_clip(context)
    tokens = context.mask.sum().clamp(min=1)
    assert torch.allclose(
        (ours * context.mask).sum() / tokens, _trl_dapo(batch, delta), rtol=1e-12, atol=1e-12
    )


def _trl_dapo(batch: Batch, delta: float | None) -> torch.Tensor:
    from accelerate import Accelerator
    from trl import GRPOTrainer

    context = batch.context()
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(cpu=True),
        args=SimpleNamespace(delta=delta, steps_per_generation=1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (context.logprobs, context.entropies, None),
        _metrics={"train": _Anything()},
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        beta=0.0,
        current_gradient_accumulation_steps=1,
        epsilon_low=0.2,
        epsilon_high=0.2,
        importance_sampling_level="token",
        loss_type="dapo",
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    ones = torch.ones_like(context.mask)
    inputs = {
        "prompt_ids": ones.long(),
        "prompt_mask": ones,
        "completion_ids": ones.long(),
        "completion_mask": context.mask,
        "advantages": context.advantages,
        "old_per_token_logps": context.old,
        "num_items_in_batch": context.mask.sum(),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


class _Anything(dict[str, list[float]]):
    """TRL's metrics, which are not looked at."""

    def __missing__(self, key: str) -> list[float]:
        return []


def _one_token(logprob: float, old: float, advantage: float) -> Batch:
    return Batch(
        logprobs=[[logprob]],
        old=[[old]],
        sampled=[[old]],
        advantages=[[advantage]],
        mask=[[1.0]],
        entropies=[[0.0]],
        is_expert=[False],
        ref=[[0.0]],
        prox=[[0.0]],
        rewards=[0.0],
        versions_behind=[0],
        step=0,
    )
