"""How well a model tells the better answer of a pair from the worse, on pairs nobody trained on.

Forward passes only; what is held out was decided before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from trainers.models.weights import load_model, load_tokenizer, pad_id_of
from trainers.offline.answers import Answer, AnswerPair
from trainers.offline.reward_model import load_scorer

_ROWS = 8
"""Sequences in one forward pass, at most."""
_LOGITS = 1 << 28
"""Logits of one forward pass, at most, wherever that leaves a row."""

Scores = npt.NDArray[np.float64]


def policy_accuracy(model_path: Path, base_path: Path, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """What the policy in `model_path` has come to prefer since it was `base_path`.

    Returns: `accuracy` and `margin` of log pi - log pi_base (nats, summed over the answer's tokens), DPO's
        implicit reward without its beta: the share of pairs whose better answer has more of it, a tie
        counting half, and the mean difference; 0.5 and 0.0 for the base itself. `logp_accuracy` and
        `logp_margin`: the same of log pi alone, where short answers have an advantage. `pairs`.
    """
    policy = _scored(load_model(model_path), sequence_logprobs, pairs)
    base = policy if model_path == base_path else _scored(load_model(base_path), sequence_logprobs, pairs)
    alone = {f"logp_{name}": value for name, value in _preference(policy).items()}
    return {**_preference(policy - base), **alone, "pairs": float(len(pairs))}


def scorer_accuracy(model_path: Path, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """What a reward model prefers: `accuracy`, a tie counting half, `margin` of its scores, and `pairs`."""
    model = load_scorer(model_path)
    pad_id = pad_id_of(load_tokenizer(model_path))
    model.config.get_text_config().pad_token_id = pad_id

    def score(model: PreTrainedModel, answers: Sequence[Answer]) -> Scores:
        ids, attention, _ = _batch(model, answers, pad_id)
        scores = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, 0]
        return np.asarray(scores.double().cpu())

    return _preference(_scored(model, score, pairs)) | {"pairs": float(len(pairs))}


def sequence_logprobs(model: PreTrainedModel, answers: Sequence[Answer]) -> Scores:
    """(B,) log probability of the tokens that each answer's mask keeps, nats."""
    ids, attention, mask = _batch(model, answers, 0)
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    scored = torch.log_softmax(logits.float(), dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    return np.asarray((scored.double() * mask[:, 1:]).sum(1).cpu())


def _batch(
    model: PreTrainedModel, answers: Sequence[Answer], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, T) ids, attention and mask, padded on the right, where the model is."""
    ids = [torch.tensor(list(answer.ids), dtype=torch.long) for answer in answers]
    parts = (ids, [torch.ones_like(i) for i in ids], [torch.tensor(list(a.mask)) for a in answers])
    padding = (pad_id, 0, 0)
    padded = (
        pad_sequence(list(p), batch_first=True, padding_value=v) for p, v in zip(parts, padding, strict=True)
    )
    found, attention, mask = (tensor.to(model.device) for tensor in padded)
    return found, attention, mask


@torch.no_grad()
def _scored(
    model: PreTrainedModel,
    score: Callable[[PreTrainedModel, Sequence[Answer]], Scores],
    pairs: Sequence[AnswerPair],
) -> Scores:
    """(P, 2) scores of the better and the worse answers."""
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    answers = [answer for pair in pairs for answer in pair]
    # little padding; the longest first, so that what is too much shows at once
    order = sorted(range(len(answers)), key=lambda i: -len(answers[i].ids))
    scores = np.zeros(len(answers))
    logits = max(len(answer.ids) for answer in answers) * model.config.get_text_config().vocab_size
    rows = max(1, min(_ROWS, _LOGITS // logits))
    for start in range(0, len(order), rows):
        places = order[start : start + rows]
        scores[places] = score(model, [answers[i] for i in places])
    return scores.reshape(-1, 2)


def _preference(scores: Scores) -> dict[str, float]:
    margins = scores[:, 0] - scores[:, 1]
    return {
        "accuracy": float((margins > 0).mean() + (margins == 0).mean() / 2),
        "margin": float(margins.mean()),
    }
