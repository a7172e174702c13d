"""What torchrun starts for test_launch: each process does as `rft run` does. FOLDER/scenario.json says what.

Not a test itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import peft
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.trainers.ranks import rank_scenarios
from trainers.models.adapters import write_adapter
from trainers.models.weights import gathered_state, load_model, load_tokenizer
from trainers.ranks.follower import served_torchrun
from trainers.role import other_ranks


def adapted(model_path: Path) -> Any:
    """A model with an adapter whose product is not 0."""
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    torch.manual_seed(0)
    model = peft.get_peft_model(load_model(model_path), config)
    for name, tensor in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.1)
    return model


def publish_sharded_adapter(folder: Path, model_path: Path) -> None:
    """Split a model with an adapter over the ranks, as accelerate does, and publish the adapter alone."""
    model = adapted(model_path)
    layers, mesh = model.get_base_model().model.layers, init_device_mesh("cpu", (2,))
    for number, layer in enumerate(layers):
        layers[number] = checkpoint_wrapper(layer)
        fully_shard(layers[number], mesh=mesh)
    state = gathered_state(model, model, None, trained_only=True)
    if dist.get_rank() == 0:
        assert state is not None
        assert not any(".mlp." in name for name in state)
        (folder / "sharded-adapter").mkdir()
        tokenizer = load_tokenizer(model_path)
        write_adapter(model, model_path, tokenizer, folder / "sharded-adapter", state)
    dist.barrier()


def main(folder: Path) -> None:
    """Serve, or be rank 0: train, and write what was trained; then publish a sharded model together."""
    model_path = Path(json.loads((folder / "scenario.json").read_text())["arguments"]["model_path"])
    if served_torchrun(2, 120.0):
        publish_sharded_adapter(folder, model_path)
        return
    seen = sorted(name for name in os.environ if name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    others = other_ranks(2, 120.0)
    assert others is not None
    scenario = json.loads((folder / "scenario.json").read_text())
    trainer = rank_scenarios.made(others, scenario)
    rank_scenarios.run(trainer, folder, scenario)
    trainer.close()
    others.close()
    publish_sharded_adapter(folder, model_path)
    (folder / "told.json").write_text(json.dumps({"seen": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
