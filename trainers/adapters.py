"""LoRA (arXiv:2106.09685) through PEFT: its settings, an adapter read back, and weights with it merged in.

Engines are given merged weights: every engine serves them and proves them by the same probe, and nothing
of the adapter's format leaves the trainer. The model that trains is never merged in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rft_data.errors import RecipeError
from rft_data.lookup import need, suggest
from trainers.options import refused

LORA_OWNED: Mapping[str, str] = {
    **refused("the run decides it", "task_type", "inference_mode", "base_model_name_or_path", "revision"),
    **refused("the policy is one Hugging Face model of ordinary layers", "peft_type", "auto_mapping"),
    **refused(
        "published weights are the base weights plus one product of matrices for each linear layer",
        *("use_dora", "modules_to_save", "trainable_token_indices", "layer_replication", "target_parameters"),
        *(
            "megatron_config",
            "megatron_core",
            "eva_config",
            "corda_config",
            "use_qalora",
            "alora_invocation_tokens",
        ),
    ),
}
"""Fields of LoraConfig that no recipe may set, and the reason."""

_PREFIX = "base_model.model."
_ADAPTER = "default"


def lora_config(objective: Mapping[str, Any]) -> Any:
    """PEFT's LoraConfig of a stage's `lora: {r, lora_alpha, target_modules, lora_dropout, ...}`, or None.

    Raises: MissingExtraError without PEFT; RecipeError for a field that it does not have, that cannot be
        set here, or that PEFT refuses, and for another model as `reference`.
    """
    settings = objective.get("lora")
    if settings is None:
        return None
    if objective.get("reference"):
        raise RecipeError(
            "the stage has 'lora' and 'teacher'; with an adapter the reference is the model without it. "
            "Remove one."
        )
    peft = need("peft", "train", "a stage with 'lora'")
    known = {field.name for field in dataclasses.fields(peft.LoraConfig)} - set(LORA_OWNED)
    problems = [
        f"'{name}' cannot be set here: {LORA_OWNED[name]}"
        if name in LORA_OWNED
        else f"'{name}' is not an option of PEFT's LoraConfig;{suggest(name, known)}"
        for name in settings
        if name not in known
    ]
    if problems:
        raise RecipeError("lora: " + "; ".join(problems) + ". Correct or remove these keys.")
    try:
        return peft.LoraConfig(**settings, task_type="CAUSAL_LM")
    except (TypeError, ValueError) as err:
        raise RecipeError(f"lora: {err} Change these keys of the recipe.") from err


def read_adapter(model: Any, checkpoint: Path) -> None:
    """Give a PEFT model the adapter's weights of a checkpoint."""
    peft = need("peft", "train", "a stage with 'lora'")
    state = peft.load_peft_weights(str(checkpoint), device="cpu")
    peft.set_peft_model_state_dict(model, state, adapter_name=_ADAPTER)


def merged_model(
    model: Any, state: dict[str, torch.Tensor] | None
) -> tuple[Any, dict[str, torch.Tensor] | None]:
    """The base model and its tensors with the adapter merged in; without an adapter, what was given.

    Args: state: the model's whole state dict where its ranks hold parts of it; None: `model` holds it.
    """
    scales = scales_of(model)
    if not scales:
        return model, state
    return model.get_base_model(), merged(model.state_dict() if state is None else state, scales)


def scales_of(model: torch.nn.Module) -> dict[str, float]:
    """For each layer with an adapter, by name: what its product of matrices is multiplied by.

    Raises: RecipeError for a layer that is not linear.
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
        scales[name] = float(module.scaling[_ADAPTER])  # type: ignore[index]
    return scales


def merged(state: Mapping[str, torch.Tensor], scales: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """The base model's tensors, with W + scale * B A in place of each W that has an adapter.

    Args:
        state: a PEFT model's whole state dict (gathered, where it is sharded); it stays as it is.
        scales: what `scales_of` said of that model.
    Returns: new tensors where they differ, computed in float32 and kept in the base's dtype.
    """
    out = {}
    for name, tensor in state.items():
        if ".lora_" not in name:
            out[name.removeprefix(_PREFIX).replace(".base_layer.", ".")] = tensor
    for layer, scale in scales.items():
        down = state[f"{layer}.lora_A.{_ADAPTER}.weight"].float()
        up = state[f"{layer}.lora_B.{_ADAPTER}.weight"].float()
        name = layer.removeprefix(_PREFIX) + ".weight"
        out[name] = (out[name].float() + scale * (up @ down)).to(out[name].dtype)
    return out
