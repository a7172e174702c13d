"""What torchrun starts for test_launch: each process does as `rft run` does. FOLDER/scenario.json says what.

Not a test itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.trainers import rank_scenarios
from trainers.launch import other_ranks, served_torchrun
from trainers.weights import gathered_state, load_model, load_tokenizer, write_weights


def publish_sharded(folder: Path, model_path: Path) -> None:
    """Split a model's weights over the ranks, as FSDP2 does, and publish it."""
    model = load_model(model_path)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = gathered_state(model, model, None)
    if dist.get_rank() == 0:
        (folder / "sharded").mkdir()
        write_weights(model, load_tokenizer(model_path), folder / "sharded", state)
    dist.barrier()


def main(folder: Path) -> None:
    """Serve, or be rank 0: train, and write what was trained; then publish a sharded model together."""
    model_path = Path(json.loads((folder / "scenario.json").read_text())["arguments"]["model_path"])
    if served_torchrun(2, 120.0):
        publish_sharded(folder, model_path)
        return
    seen = sorted(name for name in os.environ if name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    others = other_ranks(2, 120.0)
    assert others is not None
    scenario = json.loads((folder / "scenario.json").read_text())
    trainer = rank_scenarios.made(others, scenario)
    rank_scenarios.run(trainer, folder, scenario)
    trainer.close()
    others.close()
    publish_sharded(folder, model_path)
    (folder / "told.json").write_text(json.dumps({"seen": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
