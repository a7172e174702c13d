"""How often a model prefers the better answer of a pair, on pairs that no stage trained on.

Only forward passes are made here; the caller decides which pairs are held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from trainers.models.weights import load_model, load_tokenizer, padding_id
from trainers.offline.answers import Answer, AnswerPair
from trainers.offline.reward_model import load_scorer

_ROWS = 8
"""Sequences in one forward pass, at most."""
_LOGITS = 1 << 28
"""Logits of one forward pass, at most; but at least one row goes into a pass."""

Scores = npt.NDArray[np.float64]


def policy_accuracy(model_path: Path, base_path: Path, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """Preferences of the policy in `model_path`, compared with the model in `base_path` before training.

    Returns: `accuracy` and `margin` of log pi - log pi_base (nats, summed over the answer's tokens), DPO's
        implicit reward without its beta: the share of pairs whose better answer has the larger value (a tie
        counts half), and the mean difference; 0.5 and 0.0 for the base itself. `logp_accuracy` and
        `logp_margin`: the same of log pi alone, which favours short answers. `pairs`: their number.
    """
    policy = _scored(load_model(model_path), sequence_logprobs, pairs)
    base = policy if model_path == base_path else _scored(load_model(base_path), sequence_logprobs, pairs)
    alone = {f"logp_{name}": value for name, value in _preference(policy).items()}
    return {**_preference(policy - base), **alone, "pairs": float(len(pairs))}


def scorer_accuracy(model_path: Path, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """Preferences of a reward model: `accuracy` (a tie counts half), `margin` of its scores, and `pairs`."""
    model = load_scorer(model_path)
    pad_id = padding_id(load_tokenizer(model_path))
    model.config.get_text_config().pad_token_id = pad_id

    def score(model: PreTrainedModel, answers: Sequence[Answer]) -> Scores:
        ids, attention, _ = _batch(model, answers, pad_id)
        scores = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, 0]
        return np.asarray(scores.double().cpu())

    return _preference(_scored(model, score, pairs)) | {"pairs": float(len(pairs))}


def sequence_logprobs(model: PreTrainedModel, answers: Sequence[Answer]) -> Scores:
    """(B,) log probability of each answer, over the tokens whose mask is 1, nats."""
    ids, attention, mask = _batch(model, answers, 0)
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    scored = torch.log_softmax(logits.float(), dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    return np.asarray((scored.double() * mask[:, 1:]).sum(1).cpu())


def _batch(
    model: PreTrainedModel, answers: Sequence[Answer], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, T) ids, attention and mask, padded on the right, on the model's device."""
    ids = [torch.tensor(list(answer.ids), dtype=torch.long) for answer in answers]
    attention = [torch.ones_like(row) for row in ids]
    masks = [torch.tensor(list(answer.mask)) for answer in answers]
    return (
        pad_sequence(ids, batch_first=True, padding_value=pad_id).to(model.device),
        pad_sequence(attention, batch_first=True, padding_value=0).to(model.device),
        pad_sequence(masks, batch_first=True, padding_value=0).to(model.device),
    )


@torch.no_grad()
def _scored(
    model: PreTrainedModel,
    score: Callable[[PreTrainedModel, Sequence[Answer]], Scores],
    pairs: Sequence[AnswerPair],
) -> Scores:
    """(P, 2) scores of the better and the worse answers."""
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    answers = [answer for pair in pairs for answer in pair]
    # by length, so that little is padded; the longest first, so that a lack of memory shows at once
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
