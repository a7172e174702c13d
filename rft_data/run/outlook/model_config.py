"""The shapes of a model whose weights are not on this disk, computed from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rft_data.run.outlook.model_size import ModelSize, context_of

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Families (`model_type`) whose tensors follow from the numbers of their config."""
_BIASED = ("qwen2",)
"""Those that add a bias to queries, keys and values."""
_NORMED = ("qwen3",)
"""Those that normalise queries and keys of each head."""


def config_size(config: Mapping[str, Any]) -> ModelSize | None:
    """The model size that follows from a config; None for a family that is not in the list above.

    Raises: KeyError, TypeError, ValueError for numbers that are missing or are none.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        return None
    hidden, wide = int(config["hidden_size"]), int(config["intermediate_size"])
    heads, layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
    head_size = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * head_size, int(config.get("num_key_value_heads") or heads) * head_size
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if family in _BIASED or config.get("attention_bias"):
        layer |= {
            f"self_attn.{one}_proj.bias": (size,)
            for one, size in zip("qkv", (queries, keys, keys), strict=True)
        }
    if family in _NORMED:
        layer |= {f"self_attn.{one}_norm.weight": (head_size,) for one in "qk"}
    vocabulary = int(config["vocab_size"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    shapes["model.norm.weight"] = (hidden,)
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return ModelSize(shapes, layers, hidden, wide, keys, vocabulary, context_of(config))
