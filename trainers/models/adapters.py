"""LoRA (arXiv:2106.09685) through PEFT: settings, reading and writing adapters, and merged weights.

A published version is the adapter alone, in PEFT's files. Engines merge it into the base model as they load
it (`rft_data.weights.adapter`). The model in training is never merged in place.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import need, suggest
from rft_data.weights.adapter import ADAPTER, ADAPTER_FILE, adapted_tensor, adapter_facts
from rft_data.weights.adapter import merged as merged_tensors
from trainers.models.owned import refused
from trainers.models.weights import load_merged, write_probe

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

LORA_OWNED: Mapping[str, str] = {
    **refused("the run decides it", "task_type", "inference_mode", "base_model_name_or_path", "revision"),
    **refused("the policy is one Hugging Face model of ordinary layers", "peft_type", "auto_mapping"),
    **refused(
        "published weights are the base weights plus one product of matrices for each linear layer",
        *("use_dora", "modules_to_save", "trainable_token_indices", "layer_replication", "target_parameters"),
        *(
            "lora_bias",
            "megatron_config",
            "megatron_core",
            "eva_config",
            "corda_config",
            "kasa_config",
            "monteclora_config",
            "velora_config",
            "arrow_config",
            "use_bdlora",
            "use_qalora",
            "qalora_group_size",
            "alora_invocation_tokens",
        ),
    ),
    **refused("'init_lora_weights' may not change the model's own weights", "loftq_config", "lora_ga_config"),
}
"""Fields of LoraConfig that no recipe may set, and the reason."""

_SAFE_VALUES: Mapping[str, tuple[object, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal"),
}
"""With these values the model without its adapter is the start model, and a new adapter changes nothing."""
_ADAPTER = "default"
_CHECKPOINTED = "_checkpoint_wrapped_module."
"""Activation checkpointing adds this to names of modules; names of gathered tensors are without it."""


def lora_config(lora: Mapping[str, object] | None, teacher: str | None) -> LoraConfig | None:
    """PEFT's LoraConfig of a stage's `lora: {r, lora_alpha, target_modules, lora_dropout, ...}`, or None.

    Raises: what `adapter_config` raises; RecipeError when the stage has a teacher as well.
    """
    if lora is not None and teacher:
        raise RecipeError(
            "the stage has 'lora' and 'teacher'; with an adapter the reference is the model without it. "
            "Remove one."
        )
    return adapter_config(lora)


def adapter_config(settings: Mapping[str, object] | None, task_type: str = "CAUSAL_LM") -> LoraConfig | None:
    """PEFT's LoraConfig of these settings; None where there are none.

    Args: task_type: with `SEQ_CLS` PEFT also trains the whole score layer, beside the adapter.
    Raises: MissingExtraError without PEFT; RecipeError for a field that LoraConfig does not have, that cannot
        be set here, or that PEFT refuses.
    """
    if settings is None:
        return None
    peft = need("peft", "train", "a stage with 'lora'")
    known = {field.name for field in dataclasses.fields(peft.LoraConfig)} - set(LORA_OWNED)
    problems = [
        f"'{name}' cannot be set here: {LORA_OWNED[name]}"
        if name in LORA_OWNED
        else f"'{name}' is not an option of PEFT's LoraConfig;{suggest(name, known)}"
        for name in settings
        if name not in known
    ]
    problems += [
        f"'{name}' is {settings[name]!r}, and the model must be the start model without its adapter, and "
        f"with it at first: give {', '.join(str(value).lower() for value in allowed)}"
        for name, allowed in _SAFE_VALUES.items()
        if name in settings and settings[name] not in allowed
    ]
    if problems:
        raise RecipeError("lora: " + "; ".join(problems) + ". Correct or remove these keys.")
    try:
        config: LoraConfig = peft.LoraConfig(**settings, task_type=task_type)
    except (TypeError, ValueError) as err:
        raise RecipeError(f"lora: {err} Change these keys of the recipe.") from err
    return config


def read_adapter(model: PeftModel, checkpoint: Path) -> None:
    """Load the adapter's weights of a checkpoint into a PEFT model."""
    peft = need("peft", "train", "a stage with 'lora'")
    state = peft.load_peft_weights(str(checkpoint), device="cpu")
    peft.set_peft_model_state_dict(model, state, adapter_name=_ADAPTER)


def merged_model(
    model: PreTrainedModel | PeftModel,
) -> tuple[PreTrainedModel, dict[str, torch.Tensor] | None]:
    """The base model, and its tensors with the adapter merged in; `model` and None without an adapter."""
    scales = adapter_scales(model)
    return (model.get_base_model(), merged(model.state_dict(), scales)) if scales else (model, None)


def adapter_scales(model: torch.nn.Module) -> dict[str, float]:
    """The factor of each layer's product of matrices B A, by the layer's name; empty without an adapter.

    Raises: RecipeError for an adapter of a layer that is not linear.
    """
    scales = {}
    for name, module in model.named_modules():
        if not (hasattr(module, "lora_A") and hasattr(module, "scaling")):
            continue
        layer = module.get_base_layer()  # type: ignore[operator]
        if not isinstance(layer, torch.nn.Linear):
            raise RecipeError(
                f"lora: layer '{name}' is a {type(layer).__name__}; only linear layers can be merged into "
                "published weights: give target_modules that are linear."
            )
        scales[name.replace(_CHECKPOINTED, "")] = float(module.scaling[_ADAPTER])  # type: ignore[index]
    return scales


def merged(state: Mapping[str, torch.Tensor], scales: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """The base model's tensors, with W + scale * B A in place of each W that has an adapter.

    A module that is trained whole beside the adapter (a score) has its trained tensors.

    Args:
        state: a PEFT model's whole state dict, which is not changed.
        scales: what `adapter_scales` returns for that model.
    Returns: new tensors where they differ, computed in float32 and kept in the base's dtype.
    """
    apart = (".lora_", ".original_module.")
    base = {_in_base(name): t for name, t in state.items() if not any(part in name for part in apart)}
    scale_by_tensor = {adapted_tensor(layer): scale for layer, scale in scales.items()}
    found = merged_tensors(base.items(), _adapter_tensors(state), scale_by_tensor)
    return {name: tensor.to(base[name].dtype) for name, tensor in found}


def write_adapter(
    model: PeftModel,
    base: Path,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    state: dict[str, torch.Tensor] | None,
) -> dict[str, dict[str, object]]:
    """Write a PEFT model's adapter, in PEFT's files, and the probe into the existing folder `directory`.

    Args:
        base: folder of the adapter's base model. tokenizer: makes the probe; it is not written.
        state: the gathered tensors where the model is sharded over ranks; else None.
    Returns: the entry about the adapter for the folder's manifest.
    Raises: RecipeError for an adapter that cannot be merged into the base's files.
    """
    scales = {adapted_tensor(layer): scale for layer, scale in adapter_scales(model).items()}
    facts = adapter_facts(base, scales, directory)
    found = _adapter_tensors(model.state_dict() if state is None else state)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in found.items()}
    save_file(tensors, directory / ADAPTER_FILE, metadata={"format": "pt"})
    config = copy.copy(model.peft_config[_ADAPTER])
    config.base_model_name_or_path, config.inference_mode = str(base), True
    config.save_pretrained(str(directory))
    # A sharded model would need every rank in the forward pass, and a bfloat16 one would give a probe that
    # engines in float32 do not reproduce: then the probe is made with the merged model, loaded anew.
    in_place = state is None and all(p.dtype == torch.float32 for p in model.parameters())
    probed = model.get_base_model() if in_place else load_merged(base, tensors, scales)
    write_probe(probed, tokenizer, directory)
    return {ADAPTER: facts}


def _adapter_tensors(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The adapter's tensors in a PEFT model's state dict, under the names that PEFT's files have."""
    return {name.replace(f".{_ADAPTER}.", "."): tensor for name, tensor in state.items() if ".lora_" in name}


def _in_base(name: str) -> str:
    plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return plain.replace(f".modules_to_save.{_ADAPTER}.", ".")
