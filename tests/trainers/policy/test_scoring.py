"""Scores on a CPU are those of the whole logits, in value and gradient, and of TRL's own head."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from rft_data.core.errors import TrainingError
from trainers.policy import scoring
from trainers.policy.scoring import has_plain_head, score

KEPT = 9


@pytest.fixture
def batch():
    """Ids and mask of four rows: prompts of several lengths, one empty completion, one masked."""
    torch.manual_seed(0)
    ids, attended = torch.randint(5, 100, (4, 15)), torch.ones(4, 15, dtype=torch.long)
    attended[0, :3] = 0
    attended[1, 12:] = 0
    attended[2, -KEPT:] = 0
    return ids, attended


def plain(model, ids, attended, temperature):
    """The same from the whole logits, in the model's precision."""
    logits = model(input_ids=ids, attention_mask=attended, use_cache=False).logits / temperature
    logprobs = torch.log_softmax(logits[:, -KEPT - 1 : -1], -1)
    chosen = logprobs.gather(2, ids[:, -KEPT:, None])[..., 0]
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    real = attended[:, -KEPT:]
    return chosen * real, entropies * real


def gradients(model, results, weights):
    model.zero_grad()
    sum((result * weight).sum() for result, weight in zip(results, weights, strict=True)).backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("kept_bytes", [1 << 28, 0], ids=["kept", "made-again"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
def test_scores_and_gradients_are_those_of_whole_logits_in_float64(
    model_path, batch, monkeypatch, kept_bytes, temperature, entropy_weight
):
    monkeypatch.setattr(scoring, "_KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(scoring, "_TILE_BYTES", 4 * 300 * 4)  # four tokens: the last tile is short
    ids, attended = batch
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    exact = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    got = score(model, model.lm_head.weight, ids, attended, KEPT, temperature)
    want = plain(exact, ids, attended, temperature)
    for one, other in zip(got, want, strict=True):
        assert torch.allclose(one.double(), other, atol=1e-5, rtol=1e-6)
    weights = torch.randn(4, KEPT), torch.full((4, KEPT), entropy_weight)
    if not entropy_weight:
        got, want, weights = got[:1], want[:1], weights[:1]
    ours, theirs = gradients(model, got, weights), gradients(exact, want, weights)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_scores_are_those_of_trls_fused_head(model_path, batch):
    ids, attended = batch
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ours = score(model, model.lm_head.weight, ids, attended, KEPT, 0.9)
    add_fused_lm_head(model, temperature=0.9, outputs=("log_probs", "entropy"))
    labels = ids.masked_fill(attended == 0, -100)
    labels[:, :-KEPT] = -100
    trl = model(input_ids=ids, attention_mask=attended, labels=labels, fused_lm_head=True)
    assert torch.allclose(ours[0], trl.log_probs[:, -KEPT:], atol=1e-5)
    assert torch.allclose(ours[1], trl.entropy[:, -KEPT:] * attended[:, -KEPT:], atol=1e-5)


def test_rows_without_a_token_score_nothing_and_leave_no_gradient(model_path, batch):
    ids, attended = batch
    attended[:, -KEPT:] = 0
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    results = score(model, model.lm_head.weight, ids, attended, KEPT, 1.0)
    assert not any(result.any() for result in results)
    assert not gradients(model, results, (torch.ones(()), torch.ones(()))).any()


def test_a_frozen_head_gets_no_gradient(model_path, batch):
    ids, attended = batch
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    head = model.lm_head.weight.detach().clone()
    score(model, head, ids, attended, KEPT, 1.0)[0].sum().backward()
    assert head.grad is None
    assert model.model.layers[0].mlp.up_proj.weight.grad.any()


def test_heads_that_do_more_than_one_linear_map_are_left_to_trl(model_path):
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    assert has_plain_head(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not has_plain_head(model)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    capped = Gemma2ForCausalLM(Gemma2Config(vocab_size=64, head_dim=16, intermediate_size=32, **small))
    assert not has_plain_head(capped)


def test_model_that_changes_its_logits_unknown_to_us_is_refused(model_path, batch):
    model = AutoModelForCausalLM.from_pretrained(model_path)
    model.lm_head.weight.data.mul_(50)
    plain_forward = model.forward

    def capped(*args, **kwargs):
        out = plain_forward(*args, **kwargs)
        out.logits = 3 * torch.tanh(out.logits / 3)
        return out

    model.forward = capped
    assert has_plain_head(model)
    with pytest.raises(TrainingError, match="changes its logits after the linear head"):
        score(model, model.lm_head.weight, *batch, KEPT, 1.0)
