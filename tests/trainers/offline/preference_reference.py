"""Preference losses from their papers in plain float64, and small answers to try them on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainers.offline.answers import Answer, AnswerPair


def answers(seed: int, n: int) -> list[Answer]:
    """n answers; every second one has one turn, the others two with tokens of the environment in between."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        prompt, first, between, second = (int(x) for x in rng.integers(2, 7, 4))
        mask = [0] * prompt + [1] * first + ([] if i % 2 else [0] * between + [1] * second)
        made.append(Answer(rng.integers(5, 100, len(mask)).tolist(), mask, prompt))
    return made


def pairs(seed: int, n: int) -> list[AnswerPair]:
    """n pairs; the two of a pair share their prompt."""
    made = []
    for better, worse in zip(answers(seed, n), answers(seed + 1, n), strict=True):
        prompt = better.ids[: better.prompt_length]
        ids = [*prompt, *worse.ids[worse.prompt_length :]]
        mask = [*[0] * len(prompt), *worse.mask[worse.prompt_length :]]
        made.append((better, Answer(ids, mask, len(prompt))))
    return made


def exact(path: Path) -> PreTrainedModel:
    """The model in a folder, in float64."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()


def logprob(model: PreTrainedModel, answer: Answer) -> torch.Tensor:
    """log pi of the tokens that the mask keeps, one sequence at a time; 0-dim float64."""
    scores = model(torch.tensor([list(answer.ids)])).logits[0].log_softmax(-1)
    kept = [t for t, one in enumerate(answer.mask) if one]
    return torch.stack([scores[t - 1, answer.ids[t]] for t in kept]).sum()


def gradients(model: PreTrainedModel) -> torch.Tensor:
    """All gradients as one vector, float64."""
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _log_sigmoid(x: float) -> float:
    return -_softplus(-x)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dpo_losses(
    w: Sequence[float],
    lo: Sequence[float],
    ref_w: Sequence[float],
    ref_l: Sequence[float],
    lengths: Sequence[tuple[int, int]],
    *,
    beta: float,
    eps: float,
    tau: float,
) -> dict[str, float]:
    """Every loss on pairs by its paper, averaged over the pairs.

    w, lo: log pi of the better and the worse answers, nats; ref_*: of the reference; lengths: their tokens.
    """
    cw = [a - b for a, b in zip(w, ref_w, strict=True)]
    cl = [a - b for a, b in zip(lo, ref_l, strict=True)]
    d = [a - b for a, b in zip(cw, cl, strict=True)]
    per_token = [a / nw - b / nl for a, b, (nw, nl) in zip(cw, cl, lengths, strict=True)]
    ratios = sorted(a - b for a, b in zip(w, lo, strict=True))
    ref_ratios = sorted(a - b for a, b in zip(ref_w, ref_l, strict=True))
    aot = [a - b for a, b in zip(ratios, ref_ratios, strict=True)]
    unpaired = [a - b for a, b in zip(sorted(cw), sorted(cl), strict=True)]

    def smoothed(x: float) -> float:
        return -(1 - eps) * _log_sigmoid(beta * x) - eps * _log_sigmoid(-beta * x)

    def exo(x: float) -> float:
        p = _sigmoid(beta * x)
        return p * (math.log(p) - math.log(1 - eps)) + (1 - p) * (math.log(1 - p) - math.log(eps))

    def discopop(x: float) -> float:
        share = _sigmoid(beta * x / tau)
        return (1 - share) * -_log_sigmoid(beta * x) + share * math.exp(-beta * x)

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    both = list(zip(cw, cl, strict=True))
    return {
        "sigmoid": mean([-_log_sigmoid(beta * x) for x in d]),
        "hinge": mean([max(0.0, 1 - beta * x) for x in d]),
        "ipo": mean([(x - 1 / (2 * beta)) ** 2 for x in per_token]),
        "exo_pair": mean([exo(x) for x in d]),
        "nca_pair": mean(
            [
                -_log_sigmoid(beta * a) - 0.5 * _log_sigmoid(-beta * a) - 0.5 * _log_sigmoid(-beta * b)
                for a, b in both
            ]
        ),
        "robust": mean(
            [(-(1 - eps) * _log_sigmoid(beta * x) + eps * _log_sigmoid(-beta * x)) / (1 - 2 * eps) for x in d]
        ),
        "bco_pair": mean([-_log_sigmoid(beta * a) - _log_sigmoid(-beta * b) for a, b in both]),
        "sppo_hard": mean([(a - 0.5 / beta) ** 2 + (b + 0.5 / beta) ** 2 for a, b in both]),
        "aot": mean([smoothed(x) for x in aot]),
        "aot_unpaired": mean([smoothed(x) for x in unpaired]),
        "apo_zero": mean([1 - _sigmoid(beta * a) + _sigmoid(beta * b) for a, b in both]),
        "apo_down": mean([_sigmoid(beta * a) + 1 - _sigmoid(beta * (a - b)) for a, b in both]),
        "discopop": mean([discopop(x) for x in d]),
        "sft": -sum(w) / sum(nw for nw, _ in lengths),
        "sigmoid_norm": mean([-_log_sigmoid(beta * x) for x in per_token]),
    }


def kto_loss(
    logratios: Sequence[float],
    labels: Sequence[bool],
    kl: float,
    *,
    beta: float,
    desirable: float,
    undesirable: float,
) -> float:
    """arXiv:2402.01306, equations 7 and 8, averaged; `kl` is clamped at 0."""
    z = max(0.0, kl)
    parts = [
        desirable * (1 - _sigmoid(beta * (r - z))) if good else undesirable * (1 - _sigmoid(beta * (z - r)))
        for r, good in zip(logratios, labels, strict=True)
    ]
    return sum(parts) / len(parts)
