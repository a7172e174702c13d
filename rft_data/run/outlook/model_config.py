"""The shapes of a model whose weights are not on this disk, computed from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rft_data.run.outlook.model_size import ModelSize, context_length, key_widths, token_width

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "qwen3_moe",
)
"""Families (`model_type`) whose tensors follow from the numbers of their config."""
_BIASED = ("qwen2",)
"""Those that add a bias to queries, keys and values."""
_NORMED = ("qwen3", "gemma3_text", "qwen3_moe")
"""Those that normalise queries and keys of each head."""
_FRAMED = ("gemma2", "gemma3_text")
"""Those that normalise before and after the feed-forward part."""
_TIED = ("gemma", "gemma2", "gemma3_text")
"""Those whose embedding is their head where the config does not say."""
_MIXED = ("mixtral", "qwen3_moe")
"""Mixtures of experts."""


def config_size(config: Mapping[str, Any]) -> ModelSize | None:
    """The model size that follows from a config; None for a family that is not in the list above.

    Raises: KeyError, TypeError, ValueError for numbers that are missing or are none.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        return None
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    vocabulary = int(config["vocab_size"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    if not config.get("tie_word_embeddings", family in _TIED):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    shapes["model.norm.weight"] = (hidden,)
    attention = _attention(family, config, hidden)
    for number in range(layers):
        layer = {**attention, **_feed_forward(family, config, hidden, number)}
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return ModelSize(
        shapes, layers, hidden, token_width(config), key_widths(config)[1], vocabulary, context_length(config)
    )


def _attention(family: str, config: Mapping[str, Any], hidden: int) -> dict[str, tuple[int, ...]]:
    """Attention and norms of a layer."""
    head_size, keys = key_widths(config)
    queries = int(config["num_attention_heads"]) * head_size
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if family in _BIASED or config.get("attention_bias"):
        widths = zip("qkv", (queries, keys, keys), strict=True)
        layer |= {f"self_attn.{one}_proj.bias": (width,) for one, width in widths}
    if family in _NORMED:
        layer |= {f"self_attn.{one}_norm.weight": (head_size,) for one in "qk"}
    if family in _FRAMED:
        layer |= {f"{one}_feedforward_layernorm.weight": (hidden,) for one in ("pre", "post")}
    return layer


def _feed_forward(
    family: str, config: Mapping[str, Any], hidden: int, number: int
) -> dict[str, tuple[int, ...]]:
    """The feed-forward part of a layer; its experts are counted as transformers has them in memory."""
    wide = int(config["intermediate_size"])
    every = int(config.get("decoder_sparse_step", 1))
    dense = number in (config.get("mlp_only_layers") or ()) or (number + 1) % every
    if family not in _MIXED or dense:
        return {
            "mlp.gate_proj.weight": (wide, hidden),
            "mlp.up_proj.weight": (wide, hidden),
            "mlp.down_proj.weight": (hidden, wide),
        }
    # transformers 5 writes Qwen's number under the name that Mixtral's has
    count = int(config["num_experts"] if "num_experts" in config else config["num_local_experts"])
    each = int(config.get("moe_intermediate_size") or wide)
    return {
        "mlp.gate.weight": (count, hidden),
        "mlp.experts.gate_up_proj": (count, 2 * each, hidden),
        "mlp.experts.down_proj": (count, hidden, each),
    }
