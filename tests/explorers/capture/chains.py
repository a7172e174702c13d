"""A model with a known next token for each token, so that a test knows what it says."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import FAMILIES
from trainers.models.weights import publishable

_SURE = 50.0
"""Makes the next token certain at every temperature in use."""


ROOM = 4096
"""Frameworks have long prompts, and this tokenizer short tokens."""
CALL = ("Let me add.\n", "<tool_call>", '\n{"name":"add","arguments":{"b":3,"a":2}}\n', "</tool_call>")
"""A call as no template writes it: other spaces, and another order."""


def thinking_tokenizer() -> Qwen2Tokenizer:
    """A tokenizer of Qwen3's form, whose marks of thinking are tokens, and the parts of a call too."""
    tokenizer = copy.deepcopy(trained_tokenizer())
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>", *CALL)])
    tokenizer.chat_template = FAMILIES["qwen3"]
    return tokenizer


def chain_model(path: Path, tokenizer: Qwen2Tokenizer, following: Mapping[int, int]) -> Path:
    """Write a model that says `following[token]` after each token of it, whatever came before."""
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=ROOM, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.model.norm.weight.fill_(1.0)
        for place, (token, after) in enumerate(following.items()):
            model.model.embed_tokens.weight[token, place] = 1.0
            model.lm_head.weight[after, place] = _SURE
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def published(model: Path, folder: Path, number: int) -> WeightRef:
    """A model as a version of weights."""
    folder.mkdir()
    publishable(model, folder)
    write_manifest(folder, {"run_id": "run", "version": number, "step": number})
    return WeightRef("run", number, number, str(folder))
