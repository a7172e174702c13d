"""The memory that a model needs: to be trained, and to be sampled from.

Weights, gradients, optimizer and cache are counted exactly. Activations are those that a layer of the Llama
family keeps for its backward pass (measured on transformers' Qwen2): others may need more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rft_data.run.outlook.model_size import ModelSize

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}


@dataclass(frozen=True, slots=True)
class Batch:
    """The largest micro-batch of one process."""

    rows: int
    tokens: int
    """The most tokens of a row, prompt and completion together."""
    completion: int
    """The most tokens of a row's completion."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a stage trains."""

    options: Mapping[str, object]
    """The stage's `trl`."""
    lora: Mapping[str, object] | None
    reference: bool
    """Whether a second, frozen model is in memory beside the policy."""
    critic: bool
    """Whether a second model is trained beside the policy."""
    on_gpu: bool
    processes: int = 1
    shard: bool = False
    """Whether each process keeps only a part of the model, and gathers one layer at a time."""
    logits: int | None = None
    """Float32 copies of a batch's logits that exist at one time; None: two on a GPU, and none on a CPU, where
    logits are computed in tiles."""


def width(dtype: object, default: str = "float32") -> int:
    """Bytes that one number of a torch dtype takes."""
    return _WIDTHS.get(str(dtype or default).removeprefix("torch."), _WIDTHS[default])


def training_memory(size: ModelSize, how: Training, batch: Batch) -> dict[str, int]:
    """Bytes that one training process needs, by what they are for."""
    init = how.options.get("model_init_kwargs")
    each = width(init.get("dtype") if isinstance(init, Mapping) else None)
    trained, wide = size.parameters, each
    if how.lora is not None:
        trained, wide = size.adapter_parameters(how.lora), 4  # PEFT keeps them in float32
    copies = 1 + how.critic
    kept = {
        "weights": copies * size.parameters * each + (trained * wide if how.lora is not None else 0),
        "gradients": copies * trained * wide,
        "optimizer": copies * trained * _optimizer_bytes(how.options, wide),
        "reference": size.parameters * each if how.reference and how.lora is None else 0,
    }
    if how.shard:
        kept = {name: -(-count // how.processes) for name, count in kept.items()}
    gathered = size.gathered_parameters if how.shard else size.parameters
    found = {
        **kept,
        "activations": _activations(size, how, batch),
        "weights in the width of autocast": copies * gathered * 2 if each == 4 and _half(how) else 0,
    }
    if how.shard:
        found["what is gathered at a time"] = 2 * gathered * each
    elif how.processes > 1:
        found["gradients on their way to the other processes"] = copies * trained * wide
    copies = (2 if how.on_gpu else 0) if how.logits is None else how.logits
    found["logits and their gradient"] = copies * 4 * size.vocabulary * batch.rows * batch.completion
    return {name: count for name, count in found.items() if count}


def cache_bytes_a_token(size: ModelSize, dtype: object) -> int:
    """Bytes of the keys and values of one token, in all layers together."""
    return 2 * size.layers * size.key_values * width(dtype)


def _optimizer_bytes(options: Mapping[str, object], each: int) -> int:
    """Bytes of the optimizer for a trained parameter: AdamW keeps two moments, of a byte each in 8 bits."""
    name = str(options.get("optim", "adamw_torch_fused"))
    if "8bit" in name:
        return 2
    return 0 if name == "sgd" else each if name in ("rmsprop", "adagrad", "lion_32bit") else 2 * each


def _activations(size: ModelSize, how: Training, batch: Batch) -> int:
    """Bytes that a forward pass keeps: all layers, or with checkpointing one layer and the inputs of all."""
    each = 2 if _half(how) else 4
    layer = 8 * size.hidden + 2 * size.key_values + 4 * size.intermediate
    last_norm = 2 * size.hidden
    if how.options.get("gradient_checkpointing", how.on_gpu):
        return batch.rows * batch.tokens * (size.layers * size.hidden + layer + last_norm) * each
    return batch.rows * batch.tokens * (size.layers * layer + last_norm) * each


def _half(how: Training) -> bool:
    """Whether matrices are multiplied in 16 bits: TRL's default on a GPU."""
    return bool(how.options.get("bf16", how.on_gpu) or how.options.get("fp16"))
