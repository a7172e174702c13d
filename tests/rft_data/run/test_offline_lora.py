"""LoRA through whole runs: every offline stage, a run that is killed amid one, SFT and then GRPO."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.files import read_manifest
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.rft_data.run.test_offline_run import RECIPE, rollouts, write
from tests.rft_data.run.test_online import check_books
from tests.rft_data.run.test_online import write_recipe as write_online

pytest.importorskip("peft")

ROOT = Path(__file__).parents[3]
LORA = "{r: 4, lora_alpha: 16, target_modules: all-linear}"


def lora_on(*stages: int) -> list[str]:
    """Overrides that give stages an adapter."""
    return [f"stages.{number}.lora={LORA}" for number in stages]


def stored_in(root: Path) -> Path:
    """The folder, with a buffer of rollouts."""
    root.mkdir(exist_ok=True)
    with Buffer(root / "buffer") as buffer:
        buffer.append(rollouts(60))
    return root


def weights(root: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(root / "run" / "stages" / stage / "model.safetensors")


@pytest.mark.slow
def test_every_stage_learns_with_an_adapter_and_leaves_whole_models(tmp_path: Path) -> None:
    steps = [f"stages.{number}.trl.max_steps={n}" for number, n in enumerate((4, 12, 4, 2))]
    faster = [f"stages.{number}.trl.learning_rate=1.0e-2" for number in (0, 1)]
    recipe = load_recipe(write(stored_in(tmp_path)), [*lora_on(0, 1, 2, 3), *steps, *faster])
    assert [stage["lora"]["r"] for stage in recipe.saved()["stages"]] == [4, 4, 4, 4]
    summary = run_recipe(recipe)
    assert summary["preferences"]["1-dpo"]["accuracy"] >= 0.9
    before = load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name in ("0-sft", "1-dpo", "3-kto"):
        after = weights(tmp_path, name)
        changed = {key for key in after if not torch.equal(after[key], before[key])}
        assert after.keys() == before.keys()
        assert changed == {key for key in after if key.endswith("_proj.weight")}
        assert not [
            file for file in read_manifest(tmp_path / "run" / "stages" / name)["files"] if "adapter" in file
        ]
        before = after
    assert "score.weight" in weights(tmp_path, "2-reward_model")


def test_recipe_without_lora_is_saved_as_it_always_was(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path), lora_on(1))
    assert ["lora" in stage for stage in recipe.saved()["stages"]] == [False, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.1.lora={rank: 4}", "'rank' is not an option of PEFT's LoraConfig"),
        ("stages.2.lora={r: 4, modules_to_save: [score]}", "'modules_to_save' cannot be set here"),
        ("stages.1.teacher=models/other", r"stages\.1\.teacher: unknown key"),
        ("stages.3.lora=16", r"stages\.3\.lora: found 16; a section is wanted"),
    ],
)
def test_bad_lora_is_said_before_anything_is_recorded(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        run_recipe(load_recipe(write(stored_in(tmp_path)), [override]))
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.mark.heavy
def test_run_that_is_killed_amid_a_stage_ends_with_the_same_weights(tmp_path: Path) -> None:
    text = RECIPE[: RECIPE.index("  - algorithm: reward_model")].replace("max_steps: 12", "max_steps: 4")
    lora = [*lora_on(0, 1), "stages.0.trl.max_steps=2"]
    straight, killed = stored_in(tmp_path / "straight"), stored_in(tmp_path / "killed")
    run_recipe(load_recipe(write(straight, text), lora))
    path = write(killed, text)
    command = [sys.executable, "-m", "rft_data.cli.app", "train", str(path), *lora]
    # two steps of SFT, then DPO's second
    first = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "RFT_FAILPOINT": "stage.step:4:kill"}, check=False
    )
    assert first.returncode == -signal.SIGKILL
    progress = json.loads((killed / "run" / "progress.json").read_text())
    assert progress["done"] == ["start", "0-sft", "0-sft measured"]
    run_recipe(load_recipe(path, lora))
    for stage in ("0-sft", "1-dpo"):
        one, other = weights(straight, stage), weights(killed, stage)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.heavy
def test_imitation_and_then_exploring_both_with_adapters(tmp_path: Path) -> None:
    path = write_online(tmp_path, steps=2)
    text, tuning = path.read_text(), "  - {algorithm: sft, trl: {max_steps: 4}}\n"
    path.write_text(text.replace("  - algorithm: grpo\n", tuning + "  - algorithm: grpo\n"))
    summary = run_recipe(load_recipe(path, [*lora_on(1, 2), "evaluation.limit=4"]))
    assert list(summary["heldout_accuracy"]) == ["start", "0-sft", "1-sft", "final"]
    assert summary["consumed_steps"] == 2
    check_books(tmp_path, steps=2)
    whole, imitated = weights(tmp_path, "0-sft"), weights(tmp_path, "1-sft")
    final = load_file(Path(summary["model"]) / "model.safetensors")
    for before, after in ((whole, imitated), (imitated, final)):
        changed = {name for name in after if not torch.equal(after[name], before[name])}
        assert changed == {name for name in after if name.endswith("_proj.weight")}
