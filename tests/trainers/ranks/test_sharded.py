"""A model that FSDP2 splits over two ranks: the same update, the same files, an exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rft_data.core.errors import RecipeError
from tests.tiny_vision import build_tiny_vision_model
from tests.trainers.ranks.rank_scenarios import SPLIT, alone, relative, split, weights
from trainers.policy.grpo_config import ranked_config
from trainers.policy.plan import GrpoPlan, Limits
from trainers.ranks.ranks import ALONE


@pytest.mark.heavy
@pytest.mark.parametrize("name", SPLIT)
def test_split_model_is_updated_and_published_as_a_whole_one_is(
    runs: tuple[Path, Any], model_path: Path, name: str
) -> None:
    folder, told = runs
    want, reports = alone(folder, split(folder, model_path, name), f"alone-{name}")
    got = weights(folder / name)
    start = load_file(model_path / "model.safetensors")
    before = {tensor: start.get(tensor, torch.zeros(())) for tensor in want}
    assert got.keys() == want.keys()
    assert relative(got, want, before) <= 1e-5
    for two, one in zip(told[name], reports, strict=True):
        for metric in ("loss", "grad_norm", "entropy", "kl_rollout"):
            assert two["metrics"][metric] == pytest.approx(one["metrics"][metric], rel=1e-4, abs=1e-6), metric


@pytest.mark.heavy
@pytest.mark.parametrize("name", SPLIT)
def test_checkpoint_of_a_split_model_is_that_of_a_whole_one(
    runs: tuple[Path, Any], model_path: Path, name: str
) -> None:
    folder, _ = runs
    two = folder / f"checkpoints-{name}" / "checkpoint-2"
    state = torch.load(two / "optimizer.pt", weights_only=True)["state"]
    trained = [values["exp_avg"].numel() for values in state.values()]
    assert all(type(values["exp_avg"]) is torch.Tensor for values in state.values())
    critic = [load_file(path) for path in sorted((two / "critic").glob("*.safetensors"))]
    written = [weights(two), *critic]
    assert sum(trained) == sum(tensor.numel() for file in written for tensor in file.values())


@pytest.mark.heavy
@pytest.mark.parametrize("name", SPLIT)
def test_split_model_resumes_to_the_last_bit(runs: tuple[Path, Any], name: str) -> None:
    folder, told = runs
    want, got = weights(folder / name), weights(folder / f"{name}-again")
    assert all(torch.equal(got[tensor], want[tensor]) for tensor in want)
    assert told[f"{name}-again"][0]["metrics"]["loss"] == told[name][1]["metrics"]["loss"]


@pytest.mark.slow
def test_model_that_looks_at_images_is_not_split(tmp_path: Path) -> None:
    model_path = build_tiny_vision_model(tmp_path / "model")
    plan = GrpoPlan(model_path, tmp_path, 1, 8, {}, 0, limits=Limits(shard="fsdp2"))
    with pytest.raises(RecipeError, match="looks at images: ranks whose rows show none"):
        ranked_config(plan, ALONE)
