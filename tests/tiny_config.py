"""The configuration of a tiny Qwen2 for tests that need no tokenizer of their own, or another one."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config


def tiny_config(**changes: Any) -> Qwen2Config:
    """Two layers of width 64; `changes`: at least the size of the vocabulary and its special ids."""
    settings = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
    }
    return Qwen2Config(**settings | changes)
