"""Whole runs whose trainer FSDP2 splits over two processes, stopped and resumed, equal unsplit ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rft_data.core.failpoints import armed
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.rft_data.run.test_extending import CHANGES
from tests.rft_data.run.test_online import write_recipe
from tests.trainers.ranks.rank_scenarios import ADAM, relative, weights

SPLIT = "placement={use: local, trainer: {cpus: 2, processes: 2, shard: fsdp2}}"
TRL = f"trl: {{{', '.join(f'{key}: {value}' for key, value in ADAM.items())}, lr_scheduler_type: constant}}"
PPO = "algorithm: ppo, batch_ops: [gae, whiten]"
STAGES = {
    "critic": f"{PPO}, critic: {{use: separate, learning_rate: 0.1}}",
    "adapter": f"{PPO}, critic: {{use: shared, learning_rate: 0.1}}, kl: {{coef: 0.1}}, "
    "lora: {r: 4, target_modules: [q_proj, v_proj]}",
}
"""By name, the stage of a recipe without its steps and `trl`."""


def published(root: Path) -> list[dict[str, torch.Tensor]]:
    """The tensors of the versions that are kept."""
    return [weights(folder) for folder in sorted((root / "run" / "weights").glob("v*"))]


def critic(root: Path) -> dict[str, torch.Tensor]:
    """The tensors of the critic in the last checkpoint."""
    files = sorted((root / "run" / "checkpoints" / "checkpoint-2" / "critic").glob("*.safetensors"))
    return {f"{path.name}/{name}": tensor for path in files for name, tensor in load_file(path).items()}


@pytest.mark.heavy
@pytest.mark.parametrize("name", STAGES)
def test_a_split_run_that_was_stopped_publishes_what_one_process_does(tmp_path: Path, name: str) -> None:
    stage = f"stages=[{{{STAGES[name]}, groups_per_step: 2, steps: 2, checkpoint_every: 1, {TRL}}}]"
    operators = "experience_ops=[{reward_advantage_mapper: {}}]"
    changes = [*CHANGES[:2], CHANGES[3], operators, stage, "~evaluation", "tasks.0.heldout=0"]
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        root.mkdir()
    run_recipe(load_recipe(write_recipe(one), changes))
    split = load_recipe(write_recipe(two), [*changes, SPLIT])
    with armed("step.begin", 2), pytest.raises(OSError, match=r"step\.begin"):
        run_recipe(split)
    assert run_recipe(split)["consumed_steps"] == 2
    (before, want), (_, got) = published(one), published(two)
    assert want.keys() == got.keys()
    assert relative(got, want, before) <= 1e-5
    want, got = critic(one), critic(two)
    assert want.keys() == got.keys() != set()
    assert relative(got, want, {name: torch.zeros(()) for name in want}) <= 1e-5
