"""FSDP2 (torch's `fully_shard`): each rank keeps a part of a model's weights, gradients and optimizer state.

Files stay those of a trainer that keeps everything: weights and optimizer state are gathered before rank 0
writes them, and cut up again when they are read. So a checkpoint fits any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

OptimizerState = dict[str, Any]


def shard(model: torch.nn.Module, device: torch.device) -> None:
    """Split the parameters of `model`, which every rank has whole, over all ranks, in place.

    Each layer that the model's class forbids to split is gathered by itself while it computes; what is left
    (embeddings, head, an extra value head) is gathered for the whole forward pass.

    Args: model: on `device` already, with everything that will be trained in it.
    """
    mesh = _mesh(device)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor; every rank must call it where it is split over them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def keep_optimizer_state_whole(optimizer: torch.optim.Optimizer) -> None:
    """Let `state_dict` return whole tensors, and `load_state_dict` take such.

    From then on every rank must call both. Only rank 0 gets the tensors, on the CPU; other ranks get none.
    """
    optimizer.register_state_dict_post_hook(_gathered)
    optimizer.register_load_state_dict_pre_hook(_cut)


def _gathered(optimizer: torch.optim.Optimizer, state: OptimizerState) -> OptimizerState:
    kept = dist.get_rank() == 0
    parts: dict[int, dict[str, Any]] = {}
    for index, values in state["state"].items():
        parts[index] = {}
        for name, value in values.items():
            full = whole(value).cpu() if isinstance(value, torch.Tensor) else value
            if kept:
                parts[index][name] = full
    return {**state, "state": parts}


def _cut(optimizer: torch.optim.Optimizer, state: OptimizerState) -> OptimizerState:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parts = {
        index: {name: _as_part(value, parameters[index]) for name, value in values.items()}
        for index, values in state["state"].items()
    }
    return {**state, "state": parts}


def _as_part(value: Any, parameter: torch.Tensor) -> Any:
    """This rank's part of a value that is as large as its parameter; other values (steps) as they are."""
    if not (isinstance(parameter, DTensor) and isinstance(value, torch.Tensor)):
        return value
    if value.shape != parameter.shape:
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)


def _layers(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    names = _unsplit(model)
    return (module for module in model.modules() if type(module).__name__ in names)


def _unsplit(model: torch.nn.Module) -> frozenset[str]:
    """Names of the classes that transformers says are one layer, of the model and of models inside it."""
    return frozenset(
        name for part in model.modules() for name in getattr(part, "_no_split_modules", None) or ()
    )


def _mesh(device: torch.device) -> DeviceMesh:
    return init_device_mesh(device.type, (dist.get_world_size(),))
